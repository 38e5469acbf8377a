"""A small GPT: the model that every strategy of this lab shards, moves and checks itself against.

    tokens_BT -> embedding -> block 0 ... block L-1 -> norm -> head -> logits_BTV

GPT-2 (pre-norm, learned positions, GELU, head tied to the token embedding) without dropout and,
like most models since, without biases: 12 L D^2 numbers in the blocks, and few tensors to send.
One projection per module, so that each can be sharded alone. GPTConfig(rotary=True) exchanges the
learned positions for rotary ones, which have no parameters and no longest sequence.

Shapes, by suffix, in every file of labkit (`x_BTD` is a tensor of shape (B, T, D)):

    B  batch: sequences           H  heads                    L  layers
    T  time: tokens in a sequence K  features of a head, D/H  V  vocabulary
    D  hidden features            F  features inside the MLP  N  numel of something flattened
    G  key-value heads

A lower-case suffix is the share of one rank: `w_fD` is w_FD with F split over an axis.
Paper: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

import math
import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.gpt_config import GPTConfig as GPTConfig


class Embedding(nn.Module):
    """tokens_BT (int64) -> x_BTD: a row per token value plus a row per position.

    With rotary positions there is no row per position: attention turns queries and keys.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab, config.hidden)
        self.position = None if config.rotary else nn.Embedding(config.context, config.hidden)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return x_BTD. Raises TypeError or ValueError for tokens outside the table."""
        longest = None if self.position is None else self.position.num_embeddings
        require_tokens(tokens_BT, self.token.num_embeddings, longest)
        return self.at(tokens_BT, torch.arange(tokens_BT.shape[1], device=tokens_BT.device))

    def at(self, tokens_BT: Tensor, positions_T: Tensor) -> Tensor:
        """x_BTD of tokens at these positions in their sequences."""
        x_BTD = self.token(tokens_BT)
        return x_BTD if self.position is None else x_BTD + self.position(positions_T)


def require_tokens(tokens_BT: Tensor, vocab: int, longest: int | None) -> None:
    """Raise TypeError or ValueError for tokens outside tables of these lengths.

    longest: the number of positions; None: no limit.
    """
    if tokens_BT.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"tokens are {tokens_BT.dtype}, not row numbers; pass tokens.long()")
    if tokens_BT.dim() != 2:
        raise ValueError(f"{tokens_BT.dim()} dims, not 2: (batch, time); try tokens[None]")
    if longest is not None and tokens_BT.shape[1] > longest:
        raise ValueError(
            f"{tokens_BT.shape[1]} tokens exceed context={longest}, where the positions end; "
            f"pass tokens[:, :{longest}] or raise the context"
        )
    # On a GPU this would wait for the device at every step; there, torch's own assert reports it.
    # In a traced graph it would be a graph break: the branch depends on values.
    is_looked_at = tokens_BT.is_cpu and not torch.compiler.is_compiling()
    if is_looked_at and ((tokens_BT < 0) | (tokens_BT >= vocab)).any():
        wrong = int(tokens_BT.max()) if tokens_BT.max() >= vocab else int(tokens_BT.min())
        raise ValueError(
            f"token {wrong} is outside 0..{vocab - 1}; encode text as bytes, or raise the vocab"
        )


class Attention(nn.Module):
    """Causal self-attention: x_BTD -> x_BTD, each token attends to those before it.

    Weights (out, in): query (H*K, D); key, value (G*K, D); out (D, H*K). The number of heads is
    read from the weight, so the same code runs on a rank that holds only some of them. With G < H,
    the i-th H/G heads share the i-th key and value (Ainslie et al., arXiv:2305.13245).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        D, self.head_dim, self.rotary = config.hidden, config.head_dim, config.rotary
        self.query = nn.Linear(D, D, bias=False)
        self.key = nn.Linear(D, config.kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(D, config.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        # Another function replaces it if a rank has only some of the tokens.
        self.attend: Callable[[Tensor, Tensor, Tensor, int, bool], Tensor] = attend

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the attended features, x_BTD."""
        q_BTD, k_BTD, v_BTD = self.query(x_BTD), self.key(x_BTD), self.value(x_BTD)
        return self.out(self.attend(q_BTD, k_BTD, v_BTD, self.head_dim, self.rotary))


def attend(
    q_BTD: Tensor, k_BTD: Tensor, v_BTD: Tensor, head_dim: int, rotary: bool = False
) -> Tensor:
    """Return causal attention by heads of `head_dim` features: (B, T, H*K), keys (B, T, G*K)."""
    q_BHTK, k_BGTK, v_BGTK = (split_heads(x, head_dim) for x in (q_BTD, k_BTD, v_BTD))
    if rotary:
        positions_T = torch.arange(q_BTD.shape[1], device=q_BTD.device)
        q_BHTK, k_BGTK = rotate(q_BHTK, positions_T), rotate(k_BGTK, positions_T)
    shared = k_BGTK.shape[1] != q_BHTK.shape[1]
    y_BHTK = F.scaled_dot_product_attention(
        q_BHTK, k_BGTK, v_BGTK, is_causal=True, enable_gqa=shared
    )
    return y_BHTK.transpose(1, 2).flatten(2)


def split_heads(x_BTD: Tensor, head_dim: int) -> Tensor:
    """(B, T, H*K) -> (B, H, T, K), a view."""
    num_heads = x_BTD.shape[2] // head_dim  # -1 would fail on a rank without sequences
    return x_BTD.unflatten(2, (num_heads, head_dim)).transpose(1, 2)


def rotate(x_XTK: Tensor, positions_T: Tensor) -> Tensor:
    """Rotary positions: turn each pair of features by an angle that grows with the position.

    Features i and i + K/2 are a pair, turned by position / 10,000^(2i/K). The product of a query
    and a key then depends on their distance only, so any length has positions.
    Paper: Su et al., "RoFormer", arXiv:2104.09864; the pairs are those of GPT-NeoX and Llama.
    """
    half = x_XTK.shape[-1] // 2
    # In float64: at position 100,000 the angles of float32 are wrong by 1/100 of a radian.
    exponents = torch.arange(half, device=positions_T.device, dtype=torch.float64) / half
    angles_Tk = positions_T[:, None] / 10_000**exponents
    cos_Tk, sin_Tk = angles_Tk.cos().to(x_XTK.dtype), angles_Tk.sin().to(x_XTK.dtype)
    a, b = x_XTK[..., :half], x_XTK[..., half:]
    return torch.cat([a * cos_Tk - b * sin_Tk, b * cos_Tk + a * sin_Tk], -1)


class MLP(nn.Module):
    """x_BTD -> x_BTD through F features. Weights (out, in): up (F, D), down (D, F)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, config.ffn_hidden, bias=False)
        self.down = nn.Linear(config.ffn_hidden, config.hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the transformed features, x_BTD."""
        return self.down(F.gelu(self.up(x_BTD)))


class Block(nn.Module):
    """x_BTD -> x_BTD: attention, then MLP, each on normed features and added to them."""

    def __init__(self, config: GPTConfig, mlp: nn.Module | None = None) -> None:
        """mlp: a module to use instead of the MLP, such as a layer of experts; None: an MLP."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden, bias=False)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden, bias=False)
        self.mlp = MLP(config) if mlp is None else mlp

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the next layer's features, x_BTD."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


def parameter_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter of a GPT by name, without making one; the head is tied."""
    D, F, G = config.hidden, config.ffn_hidden, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embedding.token.weight": (config.vocab, D)}
    if not config.rotary:
        shapes["embedding.position.weight"] = (config.context, D)
    of_block = {
        "attention_norm": (D,),
        "attention.query": (D, D),
        "attention.key": (G, D),
        "attention.value": (G, D),
        "attention.out": (D, D),
        "mlp_norm": (D,),
        "mlp.up": (F, D),
        "mlp.down": (D, F),
    }
    for layer in range(config.num_layers):
        shapes |= {f"blocks.{layer}.{name}.weight": shape for name, shape in of_block.items()}
    return {**shapes, "norm.weight": (D,)}


class GPT(nn.Module):
    """The whole model: tokens_BT (int64) -> logits_BTV of the next token at each position.

    A seed gives the same parameters on every rank; float32 ones are those of float64, rounded. The
    caller's random state is left alone. make_block: makes a block; strategies have their own.
    """

    def __init__(
        self,
        config: GPTConfig,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        make_block: Callable[[GPTConfig], nn.Module] = Block,
    ) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # torch's layers draw values as they are made
            self.embedding = Embedding(config)
            self.blocks = nn.ModuleList(make_block(config) for _ in range(config.num_layers))
            self.norm = nn.LayerNorm(config.hidden, bias=False)
            self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.head.weight = self.embedding.token.weight
        self.to(dtype)
        initialize(self, seed, config.num_layers)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits_BTV, of the model's dtype."""
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))

    @property
    def num_parameters(self) -> int:
        """Number of trainable numbers; the tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


@torch.no_grad()
def initialize(module: nn.Module, seed: int, num_layers: int) -> None:
    """Fill a GPT, or any part of it under the same names, much as GPT-2 does.

    Every parameter has its own generator, so that a part gets the same numbers as within the whole.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            continue  # a shape without numbers
        if parameter.dim() == 1:
            parameter.fill_(1.0)  # the scale of a norm
        else:
            # the residual stream sums 2L terms; scaled down, their sum has the size of one
            is_residual = name.endswith((".out.weight", ".down.weight"))
            std = 0.02 / math.sqrt(2 * num_layers) if is_residual else 0.02
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
            draw = torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64, device="cpu"
            )
            parameter.copy_(draw * std)

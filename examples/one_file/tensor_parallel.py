"""Tensor parallelism in one file: a GPT whose heads and MLP features are cut over ranks.

    x -> norm --f--> some heads    -> attention -> out, partial sums  --g--> + x
      -> norm --f--> some features -> gelu      -> down, partial sums --g--> + x

f: nothing forward, an all-reduce of the gradient backward. g: an all-reduce forward, nothing
backward. In between a rank has finished features of its own, and needs none of another rank.

Layout: query, key, value and up are cut by rows of the stored weight (out, in); out and down by
columns. Embeddings, norms and x are whole on every rank, and so are the gradients of these weights,
without a message. All ranks have all tokens.
Wire: per block 2 all-reduces of x forward and 2 backward, each 2(n-1)/n of x's bytes per rank.
Paper: Shoeybi et al., "Megatron-LM", arXiv:1909.08053.

    torchrun --nproc-per-node 2 tensor_parallel.py
    python tensor_parallel.py        starts two ranks
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


class Enter(torch.autograd.Function):
    """f: each rank uses x for its own features, so the gradient of x is a sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the sum of the ranks' gradients."""
        return summed(gradient)


class Leave(torch.autograd.Function):
    """g: sum the ranks' partial results. Every rank then has the whole gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor) -> Tensor:
        """Return the sum over ranks."""
        return summed(partial)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient."""
        return gradient


def summed(x: Tensor) -> Tensor:
    """Return the sum over ranks, and leave x as it is: autograd may need it again."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class Block(nn.Module):
    """x (B, T, D) -> the same shape. `parallelize` leaves a rank's heads and features of it."""

    def __init__(self, hidden: int, head_dim: int, ffn: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(hidden, bias=False) for _ in range(2))
        sizes = dict.fromkeys(("query", "key", "value", "out"), (hidden, hidden))
        for name, (a, b) in (sizes | {"up": (hidden, ffn), "down": (ffn, hidden)}).items():
            setattr(self, name, nn.Linear(a, b, bias=False))
        self.enter = self.leave = lambda x: x  # in one process

    def forward(self, x: Tensor) -> Tensor:
        """Return the next layer's features."""
        y = self.enter(self.attention_norm(x))
        q, k, v = (weight(y) for weight in (self.query, self.key, self.value))
        heads = (h.unflatten(2, (-1, self.head_dim)).transpose(1, 2) for h in (q, k, v))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.leave(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.leave(self.down(F.gelu(self.up(self.enter(self.mlp_norm(x))))))


class GPT(nn.Module):
    """tokens (B, T) -> logits (B, T, V), with a head that is tied to the embedding."""

    def __init__(self, vocab=19, context=8, layers=2, hidden=20, head_dim=4, ffn=26) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, hidden), nn.Embedding(context, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, head_dim, ffn) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.norm(self.blocks(x)) @ self.token.weight.T


def parallelize(model: GPT) -> GPT:
    """Keep this rank's shares of the weights. Sizes need not divide; each rank needs a head."""
    for block in model.blocks:
        for layer in (block.query, block.key, block.value):
            cut(layer, 0, block.head_dim)  # whole heads
        cut(block.out, 1, block.head_dim)
        cut(block.up, 0)
        cut(block.down, 1)
        block.enter, block.leave = Enter.apply, Leave.apply
    return model


def cut(layer: nn.Linear, dim: int, unit: int = 1) -> None:
    """Keep this rank's part of a dimension of the weight: equal numbers of `unit`, or one more."""
    units = layer.weight.detach().unflatten(dim, (-1, unit))
    mine = units.tensor_split(dist.get_world_size(), dim)[dist.get_rank()]
    layer.weight = nn.Parameter(mine.flatten(dim, dim + 1).clone())


def main() -> None:
    """Train on all ranks and in one process, and compare the losses."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and .to(device)
    torch.manual_seed(0)
    serial = GPT().double()
    model = GPT().double()
    model.load_state_dict(serial.state_dict())
    losses = []
    for each in (parallelize(model), serial):
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.01)
        losses.append([])
        for step in range(10):
            tokens = torch.randint(19, (3, 9), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = F.cross_entropy(each(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    difference = max(abs(a - b) for a, b in zip(*losses))
    heads = len(model.blocks[0].query.weight) // model.blocks[0].head_dim
    print(f"rank {dist.get_rank()}: 10 steps with {heads} of 5 heads, {difference=:.1e}")
    dist.destroy_process_group()
    if difference > 1e-9:
        raise SystemExit("tensor parallelism is not the serial step")


if __name__ == "__main__":
    if "RANK" not in os.environ:  # not under torchrun: become it
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    main()

"""Fewer bits: weights of 8 and 4 bits, int8 keys and values, training with rounded weights.

Weight-only quantization: int8 and int4 weights with a scale per group, computed in full numbers.

    weights of one output, groups of 4   0.10 -0.70  0.31  0.02 | 1.40 -0.60  0.21  0.00
    scale: the largest / 7               0.1                    | 0.2
    codes: weight / scale, rounded          1    -7     3     0 |    7    -3     1     0
    codes * scale                        0.10 -0.70  0.30  0.00 | 1.40 -0.60  0.20  0.00

A code has 8 bits, -127 to 127, or 4 bits, -7 to 7. Each weight is wrong by at most half a step,
half of its group's scale. A large weight makes the scale large for its whole group, so small groups
are more precise. They cost more scales: `bits + 16 / group` bits per weight.

Decoding a few sequences is bound by the bandwidth of memory, for each pass reads all weights. A
quarter of the bytes can be four times as fast, if the kernel dequantizes inside the multiplication.
Here torch dequantizes before it, so memory is saved and time is not.

Layout: codes_OI int8, or codes_Oi uint8, two codes in a byte, the first in its lower half;
scale_Og bfloat16. O outputs, I inputs, g groups of inputs. No group: one scale for all inputs of
an output ("per channel"). Norms, embeddings and the head keep their numbers.

Int8PagedCache: int8 keys and values, with a scale per token and head.

    a key of one head     0.31 -1.27  0.02 ... 0.64      K features
    codes, int8             31  -127     2 ...   64      K bytes
    scale, bfloat16       0.01                           2 bytes

A token takes K + 2 bytes per head for its key, and as many for its value, instead of 4 K in float32
or 2 K in 16 bits. So almost four times, or twice, as many tokens fit. Each number is wrong by at
most half a step: 1/254 of the largest in its head. The new token's scale needs no other token, so
the tokens in the cache never change.

Answers can differ from those of a lossless cache. They still do not depend on the traffic: a pass
also reads its own keys from the cache, so a token sees the same rounded keys in a prompt, in a
chunk and alone.

Layout: keys_LNGK, values_LNGK int8; key_scales_LNG1, value_scales_LNG1 bfloat16.

Quantization-aware training (QAT): weights that are rounded in every forward learn to be rounded.

    weight (full) --round--> rounded --> forward --> loss
         ^                                            |
         +------------- gradient, unchanged <---------+      straight-through

Rounding has the gradient 0 almost everywhere, so training would stop. The straight-through
estimator takes the gradient for the rounded weight as that for the full weight. An optimizer's step
is often smaller than a step of the codes. The full weights add up such steps until a code changes.

Post-training quantization (PTQ) rounds once, after training. QAT costs training steps, and is worth
them where PTQ loses much: large models at 4 bits or fewer. A GPT as small as this lab's loses
almost nothing at 4 and 3 bits, and 0.1 to 0.2 nats per token at 2.

Papers: Dettmers et al., "LLM.int8()", arXiv:2208.07339; Frantar et al., "GPTQ", arXiv:2210.17323,
which chooses the roundings better; Lin et al., "AWQ", arXiv:2306.00978, which scales inputs first;
Sheng et al., "FlexGen", arXiv:2303.06865, section 4.3, for a cache with 4 bits by group (vLLM and
LMDeploy offer int8 with a scale per token and head); Bengio et al., arXiv:1308.3432
(straight-through); Jacob et al., arXiv:1712.05877 (QAT).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from labkit import arguments
from labkit.data import Corpus
from labkit.model import GPT, GPTConfig
from labkit.serving.caches import PagedCache
from labkit.train import TrainConfig, loss, train_step


def to_codes(x_XI: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return codes of `bits` bits (2 to 8) as int8, and one scale for all I numbers, scale_X1.

    codes * scale differs from x by at most scale / 2.
    """
    most = 2 ** (bits - 1) - 1
    # bfloat16 has float32's range. Its rounding moves the largest code by 0.25 at most.
    scale_X1 = (x_XI.abs().amax(-1, keepdim=True) / most).bfloat16()
    scale_X1 = scale_X1.clamp_min(2**-24)  # for a group of zeros; the smallest in float16
    wide = torch.promote_types(x_XI.dtype, torch.float32)  # 16 bits are too few to divide
    return (x_XI.to(wide) / scale_X1.to(wide)).round().to(torch.int8), scale_X1


def from_codes(codes_XI: Tensor, scale_X1: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x_XI, the numbers that these codes stand for."""
    return codes_XI.to(dtype) * scale_X1.to(dtype)


def _by_group(weight_OI: Tensor, group: int | None) -> Tensor:
    """Return weight_OgI: the inputs of each group in a row."""
    num_inputs = weight_OI.shape[1]
    if group is None:
        group = num_inputs
    if num_inputs % arguments.whole("group", group, "1 or more inputs"):
        raise ValueError(
            f"group={group} does not divide the {num_inputs} inputs of a layer; "
            f"choose one of {arguments.divisors(num_inputs)}"
        )
    return weight_OI.unflatten(1, (-1, group))


def rounded(weight_OI: Tensor, bits: int, group: int | None = None) -> Tensor:
    """Round `weight_OI` to so many bits, 2 to 8. group: inputs with one scale; None: all."""
    groups_OgI = _by_group(weight_OI, group)
    return from_codes(*to_codes(groups_OgI, bits), weight_OI.dtype).flatten(1)


def pack(codes_OI: Tensor) -> Tensor:
    """Pack codes of 4 bits, two per byte: codes_Oi, uint8. I is even."""
    low, high = codes_OI.unflatten(-1, (-1, 2)).view(torch.uint8).unbind(-1)
    return (low & 15) | (high << 4)


def unpack(codes_Oi: Tensor) -> Tensor:
    """Return the codes that `pack` packed, int8."""
    nibbles = torch.stack([codes_Oi & 15, codes_Oi >> 4], -1).flatten(-2)
    return (nibbles ^ 8).view(torch.int8) - 8  # the sign is the fourth bit


class QuantizedLinear(nn.Module):
    """A linear layer without a bias whose weight is codes and scales."""

    codes: Tensor
    scale: Tensor

    def __init__(self, weight_OI: Tensor, bits: int, group: int | None = None) -> None:
        super().__init__()
        codes_OgI, scale_Og1 = to_codes(_by_group(weight_OI, group), bits)
        codes_OI = codes_OgI.flatten(1)
        self.bits = bits
        self.out_features, self.in_features = codes_OI.shape
        self.register_buffer("codes", pack(codes_OI) if bits == 4 else codes_OI)
        self.register_buffer("scale", scale_Og1.squeeze(-1))

    def weight(self, dtype: torch.dtype) -> Tensor:
        """weight_OI, the numbers that the codes stand for."""
        codes_OI = unpack(self.codes) if self.bits == 4 else self.codes
        codes_OgI = codes_OI.unflatten(1, (self.scale.shape[1], -1))
        return from_codes(codes_OgI, self.scale[..., None], dtype).flatten(1)

    def forward(self, x_XI: Tensor) -> Tensor:
        """y_XO. Backward dequantizes again, so that autograd keeps no weight in full numbers."""
        return _Dequantized.apply(x_XI, self)


class _Dequantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_XI: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(x_XI, layer.weight(x_XI.dtype))

    @staticmethod
    def backward(ctx: Any, gradient_XO: Tensor) -> tuple[Tensor, None]:
        return gradient_XO @ ctx.layer.weight(gradient_XO.dtype), None


def quantize(model: GPT, bits: int, group: int | None = None) -> GPT:
    """Return a copy of a GPT with block weights of 8 or 4 bits, which a Decoder can run.

    group: inputs with one scale; None: all inputs of an output. ValueError: bits other than 8 and
    4, or a group that does not divide a layer's inputs.
    """
    if bits not in (8, 4):
        raise ValueError(f"bits={bits!r}: give 8, or 4, of which two fit in a byte")
    quantized = copy.deepcopy(model)
    for module in list(quantized.blocks.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, QuantizedLinear(child.weight.detach(), bits, group))
    return quantized


def weight_bytes(model: nn.Module) -> int:
    """Count bytes of all parameters, codes and scales; a tied parameter counts once."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


@torch.no_grad()
def logits_error(exact: nn.Module, approximate: nn.Module, tokens_BT: Tensor) -> float:
    """Return the norm of the difference of two models' logits over the norm of the exact ones."""
    logits_BTV = exact(tokens_BT)
    return ((approximate(tokens_BT) - logits_BTV).norm() / logits_BTV.norm()).item()


class Int8PagedCache(PagedCache):
    """A PagedCache that rounds keys and values to 8 bits.

    dtype: of the keys and values that `write` takes and `read` returns, the model's.
    """

    def __init__(
        self,
        config: GPTConfig,
        num_pages: int,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, num_pages, page_size, torch.int8, device)
        shape = (*self.keys_LNGK.shape[:3], 1)
        self.key_scales_LNG1 = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self.value_scales_LNG1 = torch.zeros_like(self.key_scales_LNG1)
        self.dtype = dtype

    @property
    def tensors(self) -> list[Tensor]:
        """Codes and scales."""
        return [*super().tensors, self.key_scales_LNG1, self.value_scales_LNG1]

    def write(self, layer: int, slots_n: Tensor, k_nGK: Tensor, v_nGK: Tensor) -> None:
        """Round and store keys and values of n tokens."""
        (k_codes, k_scale), (v_codes, v_scale) = to_codes(k_nGK, 8), to_codes(v_nGK, 8)
        for stored, new in zip(self.tensors, (k_codes, v_codes, k_scale, v_scale), strict=True):
            stored[layer].index_copy_(0, slots_n, new)

    def read(self, layer: int, slots_n: Tensor) -> tuple[Tensor, Tensor]:
        """k_nGK and v_nGK, the numbers that the codes stand for."""
        k_codes, v_codes, k_scale, v_scale = (
            stored[layer].index_select(0, slots_n) for stored in self.tensors
        )
        return from_codes(k_codes, k_scale, self.dtype), from_codes(v_codes, v_scale, self.dtype)


class FakeQuantize(nn.Module):
    """weight -> rounded(weight, bits, group), with the gradient of the identity."""

    def __init__(self, bits: int, group: int | None = None) -> None:
        super().__init__()
        self.bits, self.group = bits, group

    def forward(self, weight_OI: Tensor) -> Tensor:
        """Return the rounded weights."""
        change_OI = rounded(weight_OI.detach(), self.bits, self.group) - weight_OI.detach()
        return weight_OI + change_OI


def fake_quantize(model: GPT, bits: int, group: int | None = None) -> None:
    """Round the weights of the model's blocks in each forward; parameters stay full numbers."""
    for module in list(model.blocks.modules()):
        if isinstance(module, nn.Linear):
            parametrize.register_parametrization(module, "weight", FakeQuantize(bits, group))


class Losses(NamedTuple):
    """Mean loss on text that was not trained on, in nats per token."""

    exact: float  # trained in full numbers, not rounded
    post_training: float  # the same model, rounded afterwards
    aware: float  # the second half of the steps trained with rounded weights


def compare_quantized_training(
    config: GPTConfig,
    settings: TrainConfig,
    bits: int,
    group: int | None = None,
    corpus: Corpus | None = None,
) -> Losses:
    """Train a GPT twice on the same batches: in full numbers, and rounded in the second half.

    bits: 2 to 8.
    """
    corpus = corpus or Corpus.standard_library()
    first_N, last_N = corpus.bytes_N.tensor_split([len(corpus) * 9 // 10])
    batches = settings.batches(replace(corpus, bytes_N=first_N), config.context)
    unseen = settings.batches(replace(corpus, bytes_N=last_N), config.context)

    @torch.no_grad()
    def loss_of(model: GPT) -> float:
        return sum(loss(model, unseen.at(step)).item() for step in range(8)) / 8

    def train(model: GPT, steps: range) -> GPT:
        optimizer = settings.make_optimizer(model.parameters())
        for step in steps:
            train_step(model, optimizer, batches.at(step))
        return model

    half = settings.num_steps // 2
    model = train(GPT(config, settings.seed, settings.dtype), range(half))
    aware = copy.deepcopy(model)
    fake_quantize(aware, bits, group)
    train(model, range(half, settings.num_steps))
    train(aware, range(half, settings.num_steps))
    exact = loss_of(model)
    fake_quantize(model, bits, group)
    return Losses(exact, loss_of(model), loss_of(aware))

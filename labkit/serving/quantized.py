"""Weight-only quantization: int8 and int4 weights with a scale per group, computed in full numbers.

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

Papers: Dettmers et al., "LLM.int8()", arXiv:2208.07339; Frantar et al., "GPTQ", arXiv:2210.17323,
which chooses the roundings better; Lin et al., "AWQ", arXiv:2306.00978, which scales inputs first.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.model import GPT


def to_codes(x_XI: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes of `bits` bits (2 to 8) as int8, and one scale for all I numbers, scale_X1.

    codes * scale differs from x by at most scale / 2.
    """
    most = 2 ** (bits - 1) - 1
    # bfloat16 has float32's range. Its rounding moves the largest code by 0.25 at most.
    scale_X1 = (x_XI.abs().amax(-1, keepdim=True) / most).bfloat16()
    scale_X1 = scale_X1.clamp_min(2**-24)  # for a group of zeros; the smallest in float16
    wide = torch.promote_types(x_XI.dtype, torch.float32)  # 16 bits are too few to divide
    return (x_XI.to(wide) / scale_X1.to(wide)).round().to(torch.int8), scale_X1


def from_codes(codes_XI: Tensor, scale_X1: Tensor, dtype: torch.dtype) -> Tensor:
    """x_XI, the numbers that these codes stand for."""
    return codes_XI.to(dtype) * scale_X1.to(dtype)


def rounded(weight_OI: Tensor, bits: int, group: int | None = None) -> Tensor:
    """What `weight_OI` becomes in so many bits, 2 to 8. group: inputs with one scale; None: all."""
    groups_OgI = _by_group(weight_OI, group)
    return from_codes(*to_codes(groups_OgI, bits), weight_OI.dtype).flatten(1)


def pack(codes_OI: Tensor) -> Tensor:
    """Codes of 4 bits, two per byte: codes_Oi, uint8. I is even."""
    low, high = codes_OI.unflatten(-1, (-1, 2)).view(torch.uint8).unbind(-1)
    return (low & 15) | (high << 4)


def unpack(codes_Oi: Tensor) -> Tensor:
    """The codes that `pack` packed, int8."""
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
        self.register_buffer("codes", pack(codes_OI) if bits == 4 else codes_OI)
        self.register_buffer("scale", scale_Og1.squeeze(-1))

    def weight(self, dtype: torch.dtype) -> Tensor:
        """weight_OI, the numbers that the codes stand for."""
        codes_OI = unpack(self.codes) if self.bits == 4 else self.codes
        codes_OgI = codes_OI.unflatten(1, (self.scale.shape[1], -1))
        return from_codes(codes_OgI, self.scale[..., None], dtype).flatten(1)

    def forward(self, x_XI: Tensor) -> Tensor:
        """y_XO."""
        return F.linear(x_XI, self.weight(x_XI.dtype))


def quantize(model: GPT, bits: int, group: int | None = None) -> GPT:
    """A copy of a GPT whose blocks have weights of 8 or 4 bits. A Decoder can run it.

    group: inputs with one scale; None: all inputs of an output. ValueError: bits other than 8 and
    4, or a group that does not divide a layer's inputs.
    """
    arguments.instance("model", model, GPT, "give a GPT")
    if bits not in (8, 4):
        raise ValueError(f"bits={bits!r}: give 8, or 4, of which two fit in a byte")
    quantized = copy.deepcopy(model)
    for module in list(quantized.blocks.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, QuantizedLinear(child.weight.detach(), bits, group))
    return quantized


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, codes and scales; a tied parameter counts once."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


@torch.no_grad()
def logits_error(exact: nn.Module, approximate: nn.Module, tokens_BT: Tensor) -> float:
    """The norm of the difference of two models' logits over the norm of the exact ones."""
    logits_BTV = exact(tokens_BT)
    return ((approximate(tokens_BT) - logits_BTV).norm() / logits_BTV.norm()).item()


def _by_group(weight_OI: Tensor, group: int | None) -> Tensor:
    """weight_OgI: the inputs of each group in a row."""
    num_inputs = weight_OI.shape[1]
    if group is None:
        group = num_inputs
    if num_inputs % arguments.whole("group", group, "1 or more inputs"):
        raise ValueError(
            f"group={group} does not divide the {num_inputs} inputs of a layer; "
            f"choose one of {arguments.divisors(num_inputs)}"
        )
    return weight_OI.unflatten(1, (-1, group))

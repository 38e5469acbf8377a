"""Weights in 4 bits, with a scale for each group, packed two to a byte.

An interviewer asks: "You round the weights of a linear layer to 4 bits. What is a scale, and why is
there one for each group of inputs? How wrong can a weight be? A row has 100 inputs, and a group has
32: what then? How many bits does a weight really take?"

Write two functions.

    quantize(weight_OI, group)
        returns  (packed_OB, scales_OG)
    dequantize(packed_OB, scales_OG, num_inputs, group)
        returns  weight_OI, float32

Contract
    weight_OI   always float32, O outputs and I inputs. quantize leaves it as it is
    group       how many consecutive inputs of one output share a scale. If it does not divide I,
                the last group is shorter: G = ceil(I / group)
    scales_OG   float32. A group's scale is its largest |weight| divided by 7
    codes       weight / scale, rounded to the nearest whole number, ties either way: -7 to 7. So a
                weight is restored within half its group's scale, however small that is
    zeros       a group may contain only zeros. They stay zeros, and their codes are 0;
                their scale may be any number
    packed_OB   uint8. It has code + 8 in 4 bits, 1 to 15. Byte b of a row has input 2 b in its low
                4 bits and input 2 b + 1 in its high ones: B = ceil(I / 2). If I is odd, the last
                high 4 bits are 0
    dequantize  a weight is its code times its group's scale. num_inputs is I
    never       labkit.serving, torch.ao and torch's quantized dtypes
"""

import torch
from torch import Tensor


def quantize(weight_OI: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return packed_OB, two codes to a byte, and scales_OG.

    Paper: Frantar et al., "GPTQ", arXiv:2210.17323, whose groups are these.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")


def dequantize(packed_OB: Tensor, scales_OG: Tensor, num_inputs: int, group: int) -> Tensor:
    """Return weight_OI, each weight a code times its group's scale."""
    raise NotImplementedError("not attempted yet: your code replaces this line")

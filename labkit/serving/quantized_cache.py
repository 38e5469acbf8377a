"""A paged cache of int8 keys and values, with a scale per token and head.

    a key of one head     0.31 -1.27  0.02 ... 0.64      K features
    codes, int8             31  -127     2 ...   64      K bytes
    scale, bfloat16       0.01                           2 bytes

A token takes K + 2 bytes per head for its key, and as many for its value, instead of 4 K in float32
or 2 K in 16 bits. So almost four times, or twice, as many tokens fit. Each number is wrong by at
most half a step: 1/254 of the largest in its head. A scale per token: the new token's scale needs
no other token, so what is in the cache never changes.

Tokens can differ from those of a lossless cache. They still do not depend on the traffic: a pass
reads what it wrote itself from the cache, too, so a token sees the same rounded keys in a prompt,
in a chunk and alone.

Layout: keys_LNGK, values_LNGK int8; key_scales_LNG1, value_scales_LNG1 bfloat16.
Paper: Sheng et al., "FlexGen", arXiv:2303.06865, section 4.3, with 4 bits by group; int8 with a
scale per token and head is what vLLM and LMDeploy offer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.model import GPTConfig
from labkit.serving.pages import PagedCache
from labkit.serving.quantized import from_codes, to_codes


class Int8PagedCache(PagedCache):
    """A PagedCache that rounds keys and values to 8 bits.

    dtype: of the keys and values that it is given and gives back, which is the model's.
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

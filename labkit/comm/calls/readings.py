"""What a call of a torch.distributed function means: read from its arguments, before it runs.

    all_reduce(tensor, op, group)            kind, dtype, number of elements, reduce op
    broadcast(tensor, src, group)            ..., root
    all_to_all_single(output, input, ...)    ..., elements to, and from, each member

Only what the backend needs to be alike: it pairs elements, whatever shape they have.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes


class Reading(NamedTuple):
    """How to read a call: the journal's word for it, and which arguments say what it means."""

    kind: str
    tensor: str = ""
    """The argument, a tensor or a list of them, that has the same dtype and number of elements on
    every rank; "": none has."""
    root: str = ""
    """The argument that names it, `src` or `dst`; with group_ before it, counted in the group."""


COLLECTIVES = {
    "all_reduce": Reading("all_reduce", "tensor"),
    "broadcast": Reading("broadcast", "tensor", "src"),
    "reduce": Reading("reduce", "tensor", "dst"),
    "all_gather": Reading("all_gather", "tensor"),
    "all_gather_into_tensor": Reading("all_gather", "input_tensor"),
    "all_gather_single": Reading("all_gather", "input_tensor"),
    "reduce_scatter": Reading("reduce_scatter", "output"),
    "reduce_scatter_tensor": Reading("reduce_scatter", "input"),
    "reduce_scatter_single": Reading("reduce_scatter", "input"),
    "gather": Reading("gather", "tensor", "dst"),
    "scatter": Reading("scatter", "tensor", "src"),
    "all_to_all": Reading("all_to_all", "input_tensor_list"),
    "all_to_all_single": Reading("all_to_all", "input"),
    "all_reduce_coalesced": Reading("all_reduce", "tensors"),
    "all_gather_coalesced": Reading("all_gather", "input_tensor_list"),
    "barrier": Reading("barrier"),
}
# Of these nccl takes parts of different sizes.
_UNEVEN_ON_NCCL = ("all_gather", "reduce_scatter")


def tensors_of(name: str, arguments: dict[str, Any]) -> list[torch.Tensor] | None:
    """What the ranks must pass alike, nothing for a barrier.

    None where torch will refuse the call, in its own words.
    """
    reading = COLLECTIVES[name]
    if not reading.tensor:
        return []
    x = arguments[reading.tensor]
    each = [x] if isinstance(x, torch.Tensor) else x
    if not isinstance(each, list | tuple) or not each:
        return None
    return list(each) if all(isinstance(one, torch.Tensor) for one in each) else None


def stand_in(name: str, arguments: dict[str, Any], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their dtype and number of elements, (elements,), as a tensor that takes no memory."""
    if not tensors:
        return flat(0, torch.uint8)
    is_uneven = name in _UNEVEN_ON_NCCL and dist.get_backend(arguments.get("group")) == "nccl"
    return flat(0 if is_uneven else sum(one.numel() for one in tensors), tensors[0].dtype)


@functools.lru_cache(256)  # making one takes longer than the rest of reading a call
def flat(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """What a backend sees of a tensor. A program that counts operations does not see it made."""
    with _disable_current_modes():
        return torch.empty(numel, dtype=dtype, device="meta")


def splits_of(name: str, arguments: dict[str, Any], size: int) -> list[list[int]] | None:
    """Of an all-to-all: elements to, and from, each member. None for others, and wrong calls."""
    if name == "all_to_all":
        lists = arguments["input_tensor_list"], arguments["output_tensor_list"]
        if not all(_is_list_of_tensors(each, size) for each in lists):
            return None
        return [[x.numel() for x in each] for each in lists]
    if name != "all_to_all_single":
        return None
    both = []
    for end in ("input", "output"):
        x, rows = arguments[end], arguments[f"{end}_split_sizes"]
        if not isinstance(x, torch.Tensor) or not x.dim():
            return None
        width = x.numel() // x.shape[0] if x.shape[0] else 0
        both.append([n * width for n in rows or [x.shape[0] // size] * size])
    return both if all(len(each) == size for each in both) else None


def _is_list_of_tensors(x: Any, size: int) -> bool:
    is_list = isinstance(x, list | tuple) and len(x) == size
    return is_list and all(isinstance(each, torch.Tensor) for each in x)


def reduce_of(arguments: dict[str, Any]) -> str | None:
    """The journal's word for the reduce op; None for a function that has none, or a wrong one."""
    op = arguments.get("op")
    name = getattr(getattr(op, "op", op), "name", None)
    if not isinstance(name, str):
        return None
    return "mean" if name == "AVG" else name.lower()

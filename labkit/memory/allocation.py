"""Storages: one that is followed, and those that hold a tensor's numbers."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.memory.usage import KINDS

RANKING = {kind: place for place, kind in enumerate(KINDS)}


@dataclass(eq=False)
class Allocation:
    """One storage, from the first operation that shows it until it is gone."""

    storage: weakref.ref[torch.UntypedStorage]
    nbytes: int = 0
    kind: str = "other"
    history: list[tuple[float, int]] = field(default_factory=list)
    """(when, by how many bytes it grew or shrank)."""

    def resize(self, nbytes: int) -> None:
        """It has so many bytes from now on."""
        if nbytes != self.nbytes:
            self.history.append((time.perf_counter(), nbytes - self.nbytes))
            self.nbytes = nbytes

    def call_it(self, kind: str) -> None:
        """It is of this kind, if of no earlier one."""
        if RANKING[kind] < RANKING[self.kind]:
            self.kind = kind


def with_storage(tensor: Tensor) -> list[Tensor]:
    """The tensors whose storages hold its numbers: itself, or the parts of a sparse one.

    Of a DTensor and other wrappers what they wrap: their own storage has the global size. On the
    device "meta" there are shapes and no numbers.
    """
    if tensor.is_meta:
        return []
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        inner = (getattr(tensor, name) for name in flatten()[0])
        return [p for each in inner if isinstance(each, Tensor) for p in with_storage(each)]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor] if tensor.layout is torch.strided else []  # of others nobody can tell

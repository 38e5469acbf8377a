"""Memory of a rank by kind: each storage is followed from allocation to release.

    meter = Meter(module, optimizer)
    with meter:
        loss(module, batch).backward()
        optimizer.step()
    meter.usage.peak_bytes, meter.usage.at_peak["activations"]

Every operation passes a dispatch mode, which sees what it allocates; a weak reference tells when a
storage is gone. A storage's kind may turn out later: an output becomes an activation when autograd
saves it, and a gradient when it lands in `.grad`. So allocations and releases are written down, and
kinds are counted at the end:

    parameters        of the module
    gradients         in .grad, or marked
    optimizer states  in optimizer.state: master copies, moments
    buffers           the module's buffers, buckets, gathered units: what is marked so
    activations       what autograd has saved for backward
    other             results that are on their way, inputs, workspaces

A storage counts once, whatever views there are of it, with all its bytes, under the first kind in
this list that fits. The meter follows operations of this thread: on CPU a backward pass runs in it
too. Workspaces inside an operation are not seen. On a GPU torch's allocator sees them, and
`usage.allocator_peak_bytes` has its figures for the same time. The two differ by design: the
allocator rounds a request up to 512 bytes, and counts tensors that the meter never saw; the meter
knows of what kind a byte is. Where the meter's peak is far below the allocator's, something is not
followed.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.optimizer import Optimizer, state_tensors

__all__ = ["KINDS", "Meter", "Usage", "tag_tensors"]

KINDS = ("parameters", "gradients", "optimizer states", "buffers", "activations", "other")
"""Kinds of tensors; of several that fit, the first counts."""


RANKING = {kind: place for place, kind in enumerate(KINDS)}


class Meter(TorchDispatchMode):
    """A context in which memory is followed. May be entered again: `usage` is of all times.

    RuntimeError if it is entered while it runs, or left before a meter within it.
    """

    def __init__(self, module: nn.Module | None = None, optimizer: Optimizer | None = None) -> None:
        """Start to follow storages; parameters, gradients, buffers and states that exist count
        already.

        TypeError for anything but a module and an optimizer.
        """
        super().__init__()
        if module is not None and not isinstance(module, nn.Module):
            raise TypeError(f"module={module!r:.60}: give an nn.Module, or None")
        if isinstance(optimizer, type) or not (optimizer is None or hasattr(optimizer, "step")):
            raise TypeError(f"optimizer={optimizer!r:.60}: give an optimizer that is made, or None")
        self._module, self._optimizer = module, optimizer
        self._exit: ExitStack | None = None
        self._outer: Meter | None = None
        self._allocations: list[Allocation] = []
        self._live: dict[int, Allocation] = {}
        self._allocator = AllocatorPeaks()
        self._began_s = time.perf_counter()

    def mark(self, tensors: Tensor | Iterable[Tensor], kind: str) -> None:
        """Set the kind of storages that the meter cannot recognise, such as buckets: "buffers".

        ValueError for a kind that is not one of KINDS.
        """
        if kind not in RANKING:
            raise ValueError(f"kind={kind!r}: give one of {', '.join(KINDS)}")
        for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
            for allocation in self._see(tensor):
                allocation.set_kind(kind)

    @property
    def live_bytes(self) -> int:
        """Live bytes of all kinds now."""
        self._look_for_resized()
        return sum(each.nbytes for each in self._live.values())

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        self._mark_what_is_known()
        changes = sorted(
            ((when, each.kind, by) for each in self._allocations for when, by in each.history),
            key=lambda change: change[0],
        )
        now = dict.fromkeys(KINDS, 0)
        history: dict[str, list[int]] = {kind: [] for kind in KINDS}
        for _, kind, by in changes:
            now[kind] += by
            for each in KINDS:
                history[each].append(now[each])
        times_s = [when - self._began_s for when, _, _ in changes]
        return Usage(times_s, history, dict(self._allocator.peak_bytes))

    def __enter__(self) -> Meter:
        if self._exit is not None:
            raise RuntimeError("this meter is running already; make another one for what is within")
        known = len(self._allocations)
        self._mark_what_is_known()
        at_s = time.perf_counter()  # it has existed, so it is alive at once
        for each in self._allocations[known:]:
            each.history = [(at_s, each.nbytes)] if each.nbytes else []
        self._exit = ExitStack()
        self._exit.enter_context(saved_tensors_hooks(self._saved, lambda x: x))
        for hook in self._hooks():
            self._exit.callback(hook.remove)
        # Autograd calls only the innermost of nested hooks on saved tensors.
        self._outer, _innermost.meter = getattr(_innermost, "meter", None), self
        self._allocator.begin(meter._allocator for meter in self._around())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._exit is None or getattr(_innermost, "meter", None) is not self:
            raise RuntimeError(
                "this meter is left before one that was entered after it, or was never entered: "
                "use `with`, one within the other"
            )
        super().__exit__(*error)
        self._exit.close()
        self._allocator.note()
        self._exit, _innermost.meter = None, self._outer
        self._look_for_resized()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self._see(each)
        self._look_for_resized()
        return result

    def _see(self, tensor: Tensor) -> list[Allocation]:
        return [self._follow(part.untyped_storage()) for part in with_storage(tensor)]

    def _follow(self, storage: torch.UntypedStorage) -> Allocation:
        key = storage._cdata
        known = self._live.get(key)
        if known is None:
            known = Allocation(weakref.ref(storage, lambda _: self._gone(key)))
            self._live[key] = known
            self._allocations.append(known)
        known.resize(storage.nbytes())
        return known

    def _gone(self, key: int) -> None:
        if allocation := self._live.pop(key, None):
            allocation.resize(0)

    def _look_for_resized(self) -> None:
        """Notice storages that are released while their tensors live, as zero3 does silently."""
        for each in list(self._live.values()):
            storage = each.storage()
            if storage is not None and (nbytes := storage.nbytes()) != each.nbytes:
                each.resize(nbytes)

    def _saved(self, x: Tensor) -> Tensor:
        for meter in (self, *self._around()):
            for allocation in meter._see(x):
                allocation.set_kind("activations")
        return x

    def _around(self) -> Iterator[Meter]:
        """Return the meters within which this one runs, from the inside out."""
        meter = self._outer
        while meter is not None:
            yield meter
            meter = meter._outer

    def _hooks(self) -> Iterator[Any]:
        """Hook gradients, which may be gone before their kind is asked for."""
        for parameter in self._module.parameters() if self._module is not None else ():
            if parameter.requires_grad:
                yield parameter.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.mark(parameter.grad, "gradients")

    def _mark_what_is_known(self) -> None:
        if self._module is not None:
            parameters = list(self._module.parameters())
            self.mark(parameters, "parameters")
            self.mark((p.grad for p in parameters if p.grad is not None), "gradients")
            self.mark(self._module.buffers(), "buffers")
        if self._optimizer is not None:
            self.mark(state_tensors(self._optimizer), "optimizer states")


def tag_tensors(tensors: Tensor | Iterable[Tensor], kind: str) -> None:
    """Tell every meter that runs in this thread the kind of these storages.

    It is for storages that are short-lived, such as a bucket. Errors as in `Meter.mark`.
    """
    meter: Meter | None = getattr(_innermost, "meter", None)
    while meter is not None:
        meter.mark(tensors, kind)
        meter = meter._outer


_innermost = threading.local()


@dataclass(frozen=True)
class Usage:
    """Live bytes over time, by kind. Plain data: a rank can return it."""

    times_s: list[float]
    """Time of each change, from the meter's start."""
    bytes_of: Mapping[str, list[int]]
    """Live bytes after each change, by kind."""
    allocator_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """Peaks of torch's allocator while the meter ran, by GPU, with workspaces and everything else
    on the device, rounded up. Empty on CPU."""

    @property
    def totals(self) -> list[int]:
        """All kinds together, after each change."""
        return [sum(each) for each in zip(*self.bytes_of.values(), strict=True)]

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were alive at once."""
        return max(self.totals, default=0)

    @property
    def at_peak(self) -> dict[str, int]:
        """Live bytes by kind at the peak, the first of equal ones."""
        totals = self.totals
        if not totals:
            return dict.fromkeys(KINDS, 0)
        when = totals.index(max(totals))
        return {kind: history[when] for kind, history in self.bytes_of.items()}

    def peak_of(self, kind: str) -> int:
        """Return the peak of one kind, at its own moment. KeyError for an unknown kind."""
        return max(self.bytes_of[kind], default=0)

    @property
    def at_end(self) -> dict[str, int]:
        """Live bytes by kind at the end."""
        return {kind: history[-1] if history else 0 for kind, history in self.bytes_of.items()}


@dataclass(eq=False)
class Allocation:
    """A storage, from the first operation that uses it until it is gone."""

    storage: weakref.ref[torch.UntypedStorage]
    nbytes: int = 0
    kind: str = "other"
    history: list[tuple[float, int]] = field(default_factory=list)
    """(when, by how many bytes it grew or shrank)."""

    def resize(self, nbytes: int) -> None:
        """Set its size from now on."""
        if nbytes != self.nbytes:
            self.history.append((time.perf_counter(), nbytes - self.nbytes))
            self.nbytes = nbytes

    def set_kind(self, kind: str) -> None:
        """Set its kind, unless it has an earlier one of KINDS."""
        if RANKING[kind] < RANKING[self.kind]:
            self.kind = kind


def with_storage(tensor: Tensor) -> list[Tensor]:
    """Return the tensors whose storages hold its numbers: itself, or the parts of a sparse one.

    For a DTensor and other wrappers it returns the wrapped tensors, because the wrapper's own
    storage has the global size. On the device "meta" there are shapes and no numbers.
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
    return [tensor] if tensor.layout is torch.strided else []  # other layouts are unknown


class AllocatorPeaks:
    """The most bytes that torch's allocator had given out at once on each GPU."""

    def __init__(self) -> None:
        self.peak_bytes: dict[str, int] = {}
        """Peaks by device, such as "cuda:0". Empty if there is none, or none is used yet."""

    def begin(self, others: Iterable[AllocatorPeaks]) -> None:
        """Count from here. `others` are counting already; what they have seen is kept.

        It resets torch.cuda's own peaks, so other readers of these also count from here.
        """
        for other in others:
            other.note()
        for device in _devices_in_use():
            torch.cuda.reset_peak_memory_stats(device)

    def note(self) -> None:
        """Note the peaks since the last reset."""
        for device in _devices_in_use():
            peak, name = torch.cuda.max_memory_allocated(device), f"cuda:{device}"
            self.peak_bytes[name] = max(peak, self.peak_bytes.get(name, 0))


def _devices_in_use() -> Iterable[int]:
    # Asking about an unused device would take half a GB of it for a context.
    return range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()

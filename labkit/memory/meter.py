"""The meter: a dispatch mode that follows every storage from allocation to release."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.memory.allocation import RANKING, Allocation, with_storage
from labkit.memory.allocator import AllocatorPeaks
from labkit.memory.usage import KINDS, Usage
from labkit.optimizer import Optimizer, state_tensors

_innermost = threading.local()


def announce(tensors: Tensor | Iterable[Tensor], kind: str) -> None:
    """Say to every meter that runs in this thread what these storages are; nothing without one.

    For what is gone before anybody asks, such as a bucket. Errors as of `Meter.mark`.
    """
    meter: Meter | None = getattr(_innermost, "meter", None)
    while meter is not None:
        meter.mark(tensors, kind)
        meter = meter._outer


class Meter(TorchDispatchMode):
    """A context in which memory is followed. May be entered again: `usage` is of all times.

    RuntimeError where it is entered while it runs, or left before a meter within it.
    """

    def __init__(self, module: nn.Module | None = None, optimizer: Optimizer | None = None) -> None:
        """What is alive already counts from the start: parameters, gradients, buffers, states.

        TypeError for a module or an optimizer that is none.
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
        """Say what storages are that the meter cannot tell, such as buckets: "buffers".

        TypeError for what is no tensor, ValueError for a kind that is none of KINDS.
        """
        if kind not in RANKING:
            raise ValueError(f"kind={kind!r}: give one of {', '.join(KINDS)}")
        if not isinstance(tensors, Iterable):
            raise TypeError(f"{tensors!r:.60}: give a tensor, or several")
        for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{tensor!r:.60} is no tensor, and has no bytes to be marked")
            for allocation in self._see(tensor):
                allocation.call_it(kind)

    @property
    def live_bytes(self) -> int:
        """All that is alive now."""
        self._look_for_resized()
        return sum(each.nbytes for each in self._live.values())

    @property
    def usage(self) -> Usage:
        """What has been followed so far."""
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
        self._mark_what_is_known()
        self._exit = ExitStack()
        self._exit.enter_context(saved_tensors_hooks(self._saved, lambda x: x))
        for hook in self._hooks():
            self._exit.callback(hook.remove)
        # Of nested hooks on saved tensors autograd calls the innermost only.
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
        """Storages may be released while their tensors live, as zero3 does: nobody announces it."""
        for each in list(self._live.values()):
            storage = each.storage()
            if storage is not None and (nbytes := storage.nbytes()) != each.nbytes:
                each.resize(nbytes)

    def _saved(self, x: Tensor) -> Tensor:
        for meter in (self, *self._around()):
            for allocation in meter._see(x):
                allocation.call_it("activations")
        return x

    def _around(self) -> Iterator[Meter]:
        """The meters within which this one runs, from the inside out."""
        meter = self._outer
        while meter is not None:
            yield meter
            meter = meter._outer

    def _hooks(self) -> Iterator[Any]:
        """A gradient may be gone before anybody asks what it was."""
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

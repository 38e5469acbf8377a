"""Messages of ranks that share a GPU: through the host's memory, with gloo.

nccl allows one rank per GPU, and gloo takes GPU tensors in some operations only (all_reduce and
broadcast; a send of one fails). So every operation takes the same path:

    tensor on the GPU --copy--> pinned host memory --gloo--> pinned host memory --copy--> GPU

The copy down happens when the operation is posted and the copy up when it is waited for; both
block. That costs time that nccl would not need: timings of a shared GPU are no timings of nccl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


class _Roles(NamedTuple):
    """The arguments of a process group's method that it reads, and those that it writes."""

    read: tuple[int, ...]
    written: tuple[int, ...]


_ROLES = {
    "allreduce": _Roles((0,), (0,)),
    "broadcast": _Roles((0,), (0,)),
    "_reduce_scatter_base": _Roles((1,), (0,)),
    "_allgather_base": _Roles((1,), (0,)),
    "alltoall_base": _Roles((1,), (0,)),
    "gather": _Roles((1,), (0,)),
    "scatter": _Roles((1,), (0,)),
    "send": _Roles((0,), ()),
    "recv": _Roles((), (0,)),
}


def through_host(process_group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return the process group for a Group on `device`: staged where gloo meets a GPU.

    Every other process group is returned as it is. Calls on the CPU or on nccl take no longer.
    """
    if device.type == "cpu" or process_group.name() != "gloo":
        return process_group
    return ThroughHost(process_group)


class ThroughHost:
    """A gloo process group whose operations take tensors on a GPU."""

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        is_elsewhere: Callable[[torch.Tensor], bool] = lambda x: x.device.type != "cpu",
    ) -> None:
        """is_elsewhere: which tensors gloo must not get. (In tests: all of them.)"""
        self._process_group = process_group
        self._is_elsewhere = is_elsewhere

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the process group; an operation in its staged form."""
        attribute = getattr(self._process_group, name)
        if name not in _ROLES:
            return attribute

        def staged(*arguments: Any) -> StagedWork:
            return self._post(attribute, _ROLES[name], arguments)

        return staged

    def barrier(self, options: c10d.BarrierOptions) -> Any:
        """A barrier moves no tensor, and gloo's happens on the host."""
        on_host = c10d.BarrierOptions()
        on_host.timeout = options.timeout
        return self._process_group.barrier(on_host)

    def _post(self, method: Any, roles: _Roles, arguments: tuple[Any, ...]) -> StagedWork:
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # (where it belongs, on the host)
        on_host = list(arguments)
        for place in {*roles.read, *roles.written}:
            is_read, is_written = place in roles.read, place in roles.written

            def moved(
                x: torch.Tensor, is_read: bool = is_read, is_written: bool = is_written
            ) -> Any:
                if not self._is_elsewhere(x):
                    return x
                host = _on_host(x, filled=is_read)
                if is_written:
                    copies.append((x, host))
                return host

            on_host[place] = _mapped(moved, arguments[place])
        return StagedWork(method(*on_host), copies, on_host)


class StagedWork:
    """The handle of a staged operation: complete when its results are back on the GPU."""

    def __init__(
        self, work: Any, copies: list[tuple[torch.Tensor, torch.Tensor]], kept: list[Any]
    ) -> None:
        """`kept`: what gloo reads and writes, alive until the operation is complete."""
        self._work = work
        self._copies = copies
        self._kept = kept

    def wait(self) -> bool:
        """Block until the operation is complete, and copy its results to the GPU."""
        self._work.wait()
        for target, host in self._copies:
            target.copy_(host)
        self._copies, self._kept = [], []
        return True

    def __getattr__(self, name: str) -> Any:
        """Everything else is the backend's own handle's: is_completed, exception."""
        return getattr(self._work, name)


def _on_host(x: torch.Tensor, *, filled: bool) -> torch.Tensor:
    # From pinned memory a GPU copies without the driver's own detour; torch keeps the blocks.
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda, device="cpu")
    return host.copy_(x) if filled else host


def _mapped(change: Callable[[torch.Tensor], Any], tensors: Any) -> Any:
    """A tensor, or lists of tensors however deep, with every tensor changed."""
    if isinstance(tensors, torch.Tensor):
        return change(tensors)
    return [_mapped(change, each) for each in tensors]

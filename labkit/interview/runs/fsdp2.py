"""PyTorch's own FSDP2 on four ranks over gloo: which collectives its switches leave of a step.

Each unit is one linear layer, and all are equal. So a collective of each unit is one time the
parameters: an all-gather before it is used, a reduce-scatter of its gradient.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import Group
from labkit.interview.runs.real_run import real_run, run

_N, _UNITS, _WIDTH = 4, 3, 16
_KINDS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}
_KINDS |= {"allreduce_": "all_reduce"}
Counts = dict[tuple[str, int], float]
"""By kind, and by the ranks that hold the tensor together: calls, in times the units."""


class _Switches(NamedTuple):
    reshard_after_forward: bool | int = True
    reshard_after_backward: bool = True
    gradient_sync: bool = True
    """In every microbatch; if not, in the last one only."""
    has_replicas: bool = False


_KEPT = _Switches(False)
_ASKED = {
    "default": _Switches(),
    "kept to backward": _KEPT,
    "kept for the step": _KEPT._replace(reshard_after_backward=False),
    "kept for the step, gradients reduced once": _Switches(False, False, False),
    "gradients reduced once": _Switches(gradient_sync=False),
    "backward over pairs": _Switches(2),
    "two replicas": _Switches(has_replicas=True),
}


@real_run
def sent_volume(switches: str = "default", microbatches: int = 4) -> float:
    """All-gathers and reduce-scatters of a step of fully_shard, in times the parameters.

    switches: "default" (reshard_after_forward=True), "kept to backward" (False), "kept for the
    step" (set_reshard_after_backward(False) as well, but for the last microbatch), "kept for the
    step, gradients reduced once" (and set_requires_gradient_sync(False) in all but the last) or
    "gradients reduced once" (that alone). microbatches: 1 or 4.
    """
    counts = _counts(microbatches)[switches]
    return sum(calls for (kind, _), calls in counts.items() if kind != "all_reduce")


@real_run
def ranks_of_gathers(switches: str) -> tuple[int, ...]:
    """Over how many ranks fully_shard gathers a unit in one microbatch: in forward, in backward.

    switches: "default", "backward over pairs" (reshard_after_forward=2) or "two replicas" (a mesh
    of two dims, 2 by 2).
    """
    counts = _counts(1)[switches]
    gathers = {ranks: round(calls) for (kind, ranks), calls in counts.items() if "gather" in kind}
    return tuple(sorted(Counter(gathers).elements(), reverse=True))


@real_run
def all_reduces_between_replicas() -> float:
    """Of a step of one microbatch with "two replicas": calls for each unit."""
    return _counts(1)["two replicas"].get(("all_reduce", 0), 0)


def _counts(microbatches: int) -> dict[str, Counts]:
    """By switches; of rank 0."""
    return {switches: counts for (switches, k), counts in _all().items() if k == microbatches}


@real_run
def _all() -> dict[tuple[str, int], Counts]:
    """One launch for all."""
    return run(_all_counted, _N).values[0]


def _all_counted(world: Group) -> dict[tuple[str, int], Counts]:
    one_dim = init_device_mesh("cpu", (world.size,))
    two_dims = init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("replica", "shard"))
    return {
        (name, k): _counted(switches, two_dims if switches.has_replicas else one_dim, k)
        for name, switches in _ASKED.items()
        for k in (1, 4)
    }


def _counted(switches: _Switches, mesh: DeviceMesh, microbatches: int) -> Counts:
    model = _model(mesh=mesh, reshard_after_forward=switches.reshard_after_forward)
    x = torch.ones(2, _WIDTH)
    with _Collectives() as collectives:
        for microbatch in range(microbatches):
            is_last = microbatch == microbatches - 1
            model.set_reshard_after_backward(switches.reshard_after_backward or is_last)
            model.set_requires_gradient_sync(switches.gradient_sync or is_last)
            model(x).sum().backward()
    return {which: calls / _UNITS for which, calls in collectives.calls.items()}


def _model(**options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_UNITS)))
    for unit in model:
        fully_shard(unit, **options)
    return fully_shard(model, **options)


class _Collectives(TorchDispatchMode):
    """Counts torch's own collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A gathered tensor is so many shards; an all-reduce passes lists, and counts as 0."""
        kind = _KINDS.get(func.overloadpacket.__name__) if func.namespace == "c10d" else None
        if kind is not None:
            sizes = [each.numel() for each in args if isinstance(each, torch.Tensor)]
            self.calls[kind, max(sizes) // min(sizes) if sizes else 0] += 1
        return func(*args, **(kwargs or {}))

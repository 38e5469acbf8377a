"""torch's DDP over models whose parameters come in different orders: gradients would be mixed up.

DDP adds up the gradients of the n-th parameters, whatever their names, and looks only at shapes. A
model whose layers were made in the order of a set has the same names on every rank, in another
order. (Other names may be meant: ranks that train twins.)

Wire: nothing to the other ranks. Each leaves its names in the store of the process group, and then
looks at those that are there: of two ranks that differ, the one that comes later sees it.
"""

from __future__ import annotations

import functools
import inspect
import json
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.calls.compared import CallsOfAProcess, of_this_process

_num_wrapped: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


def install() -> None:
    """Let DDP compare the order of parameters before it sends any."""
    original = DistributedDataParallel.__init__
    if hasattr(original, "_compares_orders"):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapped(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        calls = of_this_process()
        if calls is not None:
            try:
                given = signature.bind(self, *args, **kwargs).arguments
            except TypeError:
                given = {}  # DDP says what is wrong with them
            _compare(calls, given.get("module"), _group_of(given))
        original(self, *args, **kwargs)

    wrapped._compares_orders = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = wrapped  # type: ignore[method-assign]


def _group_of(given: dict[str, Any]) -> dist.ProcessGroup | None:
    mesh = given.get("device_mesh")
    if mesh is not None:
        return mesh.get_group(mesh_dim=0) if mesh.ndim == 1 else None
    return given.get("process_group") or dist.group.WORLD


def _compare(calls: CallsOfAProcess, model: object, group: dist.ProcessGroup | None) -> None:
    """Raises Disagreement."""
    _, store = c10d._world.pg_map.get(group, (None, None))  # type: ignore[arg-type]
    if not isinstance(model, torch.nn.Module) or group is None or store is None:
        return
    number = _num_wrapped[group] = _num_wrapped.get(group, 0) + 1
    ours = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ranks = c10d.get_process_group_ranks(group)
    me = group.rank()
    store.set(_key(number, me), json.dumps(ours))
    for other, rank in enumerate(ranks):
        if other == me or not store.check([_key(number, other)]):
            continue
        theirs = json.loads(store.get(_key(number, other)))
        if theirs != ours and sorted(theirs) == sorted(ours):
            at = next(n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            we, they = calls.number_in_run(ranks[me]), calls.number_in_run(rank)
            raise Disagreement(
                f"DDP wraps a {type(model).__name__} whose parameter {at} is {ours[at]} on rank "
                f"{we}, and {theirs[at]} on rank {they}. Their gradients would be added up: DDP "
                "goes by the order in which a model registers its parameters. Register them in one "
                "order on every rank, such as that of sorted names"
            )


def _key(number: int, member: int) -> str:
    return f"labkit/order of parameters/{number}/{member}"

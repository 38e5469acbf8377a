"""torch's DDP over models whose parameters come in different orders: gradients would be mixed up.

DDP adds up the gradients of the n-th parameters, whatever their names, and looks only at shapes. A
model whose layers were made in the order of a set has the same names on every rank, in another
order. (Other names may be meant: ranks that train twins.)

Wire: nothing to the other ranks. Each leaves its names in the store of the process group, and then
looks at those that are there: of two ranks that differ, the one that comes later sees it.
"""

from __future__ import annotations

import functools
import json
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.calls.compared import CallsOfAProcess, of_this_process

_num_wrapped: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()
_wrapping: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def install() -> None:
    """Let DDP compare the order of parameters before it sends any."""
    original = DistributedDataParallel._build_params_for_reducer
    if hasattr(original, "_compares_orders"):
        return

    # The last of its __init__ before it sends. (A wrapper of __init__ itself would take the place
    # of the reader's line in DDP's warnings.)
    @functools.wraps(original)
    def built(self: DistributedDataParallel) -> Any:
        calls = of_this_process()
        is_new = sys._getframe(1).f_code.co_name == "__init__"  # and not one that was pickled
        if is_new and calls is not None:
            _compare(calls, self.module, self.process_group)
        _wrapping.add(self)
        return original(self)

    built._compares_orders = True  # type: ignore[attr-defined]
    DistributedDataParallel._build_params_for_reducer = built  # type: ignore[method-assign]


def is_used(group: dist.ProcessGroup) -> bool:
    """Whether there is a DDP yet that has this group."""
    return any(model.__dict__.get("process_group") is group for model in list(_wrapping))


def _compare(
    calls: CallsOfAProcess, model: torch.nn.Module, group: dist.ProcessGroup | None
) -> None:
    """Raises Disagreement."""
    _, store = c10d._world.pg_map.get(group, (None, None))  # type: ignore[arg-type]
    if group is None or store is None:
        return
    number = _num_wrapped[group] = _num_wrapped.get(group, 0) + 1
    ours = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ranks = [int(rank) for rank in c10d.get_process_group_ranks(group)]
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

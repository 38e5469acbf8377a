"""A ProcessGroup's own methods, called by a program: compared by place in the process group.

    group.allreduce([x], options)    what those that reduce, or have a root, mean: see by_place.py
    group.send([x], 1, 0)            counted as a message, so that places stay what they are

Groups and torch.distributed's functions call them too, and have compared what they hand over.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm import hand_over
from labkit.comm.calls.by_place import Meant
from labkit.comm.calls.functional_collectives import CallsIn
from labkit.comm.calls.readings import reduce_of

_KINDS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
}
_MESSAGES = ("send", "recv", "recv_anysource")
_ROOTED = ("reduce", "broadcast", "gather", "scatter")
# Whose operations are compared, and messages counted, before they come here.
_COMPARED = ("labkit.comm", c10d.__name__)


def install(calls_in: CallsIn) -> None:
    """Wrap them."""
    for name, kind in _KINDS.items():
        _wrap(name, functools.partial(_collective, kind, calls_in))
    for name in _MESSAGES:
        _wrap(name, _message)


def _wrap(name: str, hand_over: Callable[..., Any]) -> None:
    original = getattr(dist.ProcessGroup, name, None)  # a newer or older torch may not have it
    if original is None or hasattr(original, "_enters_places"):
        return

    @functools.wraps(original)
    def handed_over(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith(_COMPARED):
            return original(group, *args, **kwargs)
        return hand_over(original, group, *args, **kwargs)

    handed_over._enters_places = True  # type: ignore[attr-defined]
    setattr(dist.ProcessGroup, name, handed_over)


def _collective(
    kind: str, calls_in: CallsIn, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    group, *rest = args
    carry_out = functools.partial(original, *args, **kwargs)
    calls = calls_in(group)
    if calls is None:
        return carry_out()
    return calls.hand_over(_read(kind, [*rest, *kwargs.values()]), carry_out)


def _message(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    handed = hand_over.to(group)
    if handed is None:
        return original(group, *args, **kwargs)
    with handed.of_a_message():
        return original(group, *args, **kwargs)


def _read(kind: str, arguments: Iterable[Any]) -> Meant:
    """What the arguments of a method mean: an op and a root, or options with both."""
    op: Any = dist.ReduceOp.SUM
    root = 0
    for each in arguments:
        if isinstance(each, dist.ReduceOp | dist.ReduceOp.RedOpType):
            op = each
        elif isinstance(each, int):
            root = each
        else:
            op = getattr(each, "reduceOp", op)
            root = getattr(each, "rootRank", root)
    reduce = reduce_of({"op": op}) if "reduce" in kind else None
    return Meant(kind, reduce, root if kind in _ROOTED else None)

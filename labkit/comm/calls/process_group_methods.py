"""A ProcessGroup's own methods: what all operations of torch.distributed in Python come by.

    group.allreduce([x], options)    compared by its place where a program calls it (by_place.py)
    group.send([x], 1, 0)            counted as a message, whoever calls it (hand_over.py)

Groups, and torch.distributed's functions as calls, have compared what they hand over already.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from labkit.comm import hand_over
from labkit.comm.calls import open_call
from labkit.comm.calls.by_place import Meant
from labkit.comm.calls.functional_collectives import are_tracing
from labkit.comm.calls.of_a_group import CallsIn
from labkit.comm.calls.readings import reduce_of

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Method(NamedTuple):
    kind: str
    root_at: int | None = None
    """Which argument is the root, of the form that takes no options."""


_METHODS = {
    "allreduce": _Method("all_reduce"),
    "allreduce_coalesced": _Method("all_reduce"),
    "reduce": _Method("reduce", 1),
    "reduce_scatter": _Method("reduce_scatter"),
    "_reduce_scatter_base": _Method("reduce_scatter"),
    "reduce_scatter_tensor_coalesced": _Method("reduce_scatter"),
    "reduce_scatter_single": _Method("reduce_scatter"),
    "reduce_scatter_single_coalesced": _Method("reduce_scatter"),
    "broadcast": _Method("broadcast", 1),
    "gather": _Method("gather", 2),
    "scatter": _Method("scatter", 2),
}
_MESSAGES = ("send", "recv", "recv_anysource")


def install(calls_in: CallsIn) -> None:
    """Wrap those that reduce, or have a root, and messages."""
    for name, method in _METHODS.items():
        _wrap(name, functools.partial(_collective, method, calls_in))
    for name in _MESSAGES:
        _wrap(name, _message)
    _wrap("monitored_barrier", _monitored_barrier)


def _wrap(name: str, carried_out: Callable[..., Any]) -> None:
    original = getattr(dist.ProcessGroup, name, None)  # a newer or older torch may not have it
    if original is None or hasattr(original, "_is_seen"):
        return

    @functools.wraps(original)
    def seen(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return carried_out(functools.partial(original, group, *args, **kwargs), group, args, kwargs)

    seen._is_seen = True  # type: ignore[attr-defined]
    setattr(dist.ProcessGroup, name, seen)


def _collective(
    method: _Method,
    calls_in: CallsIn,
    carry_out: Callable[[], Any],
    group: dist.ProcessGroup,
    *arguments: Any,
) -> Any:
    calls = None if _is_compared() or are_tracing() else calls_in(group)
    if calls is None:
        return carry_out()
    return calls.by_place(_read(method, arguments), _num_places(group, arguments), carry_out)


def _is_compared() -> bool:
    """Whether this is of a Group, or what a call has come to."""
    caller = sys._getframe(3).f_globals.get("__name__") or ""
    return caller.startswith("labkit.comm.") or open_call.is_under_way()


def _read(method: _Method, arguments: _Arguments) -> Meant:
    """What the arguments of a method mean: an op and a root, or options with both."""
    args, kwargs = arguments
    op: Any = dist.ReduceOp.SUM
    root: Any = 0
    if method.root_at is not None:
        root = kwargs.get("root", args[method.root_at] if len(args) > method.root_at else 0)
    for each in (*args, *kwargs.values()):
        if isinstance(each, dist.ReduceOp | dist.ReduceOp.RedOpType):
            op = each
        op = getattr(each, "reduceOp", op)
        root = getattr(each, "rootRank", root)
    reduce = reduce_of({"op": op}) if "reduce" in method.kind else None
    return Meant(method.kind, reduce, None if method.root_at is None else int(root))


def _num_places(group: dist.ProcessGroup, arguments: _Arguments) -> set[int]:
    """As how many collectives gloo may count it.

    A reduce_scatter of lists is a reduce to each rank, and one of several is one for each.
    """
    args, kwargs = arguments
    lists = {len(each) for each in (*args, *kwargs.values()) if isinstance(each, list)}
    return {1, group.size(), *lists} if lists else {1}


def _message(carry_out: Callable[[], Any], group: dist.ProcessGroup, *_: Any) -> Any:
    handed = hand_over.to(group)
    if handed is None:
        return carry_out()
    with handed.of_messages():
        return carry_out()


def _monitored_barrier(carry_out: Callable[[], Any], group: dist.ProcessGroup, *_: Any) -> Any:
    """Rank 0 has a message from each other one, and sends one to each."""
    handed = hand_over.to(group)
    if handed is None:
        return carry_out()
    with handed.of_messages(2 * (group.size() - 1) if group.rank() == 0 else 2):
        return carry_out()

"""A ProcessGroup's own methods: what all operations of torch.distributed in Python come by.

    group.allreduce([x], options)    compared by its place where a program calls it (by_place.py)
    group.send([x], 1, 0)            counted as a message, whoever calls it (hand_over.py)

Groups, and torch.distributed's functions as calls, have compared what they hand over already.

Wire: nothing is added.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from labkit.comm import hand_over
from labkit.comm.calls import open_call
from labkit.comm.calls.by_place import Meant
from labkit.comm.calls.functional_collectives import are_tracing
from labkit.comm.calls.of_a_group import CallsIn
from labkit.comm.calls.readings import reduce_of


class _Method(NamedTuple):
    kind: str
    root_at: int | None = None
    """Which argument is the root, of the form that takes no options."""
    counts_lists: bool = False
    """Whether gloo may count one with lists as several collectives."""


_METHODS = {
    "allreduce": _Method("all_reduce"),
    "allreduce_coalesced": _Method("all_reduce"),
    "reduce": _Method("reduce", 1),
    "reduce_scatter": _Method("reduce_scatter", counts_lists=True),
    "_reduce_scatter_base": _Method("reduce_scatter"),
    "reduce_scatter_tensor_coalesced": _Method("reduce_scatter", counts_lists=True),
    "reduce_scatter_single": _Method("reduce_scatter"),
    "reduce_scatter_single_coalesced": _Method("reduce_scatter", counts_lists=True),
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
        _wrap(name, functools.partial(_messages, lambda group: 1))
    _wrap("monitored_barrier", functools.partial(_messages, _num_in_barrier))


def _wrap(name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(dist.ProcessGroup, name, None)  # another torch may not have it
    if original is not None and not hasattr(original, "_is_seen"):
        seen = functools.wraps(original)(wrapped(original))
        seen._is_seen = True  # type: ignore[attr-defined]
        setattr(dist.ProcessGroup, name, seen)


def _collective(
    method: _Method, calls_in: CallsIn, original: Callable[..., Any]
) -> Callable[..., Any]:
    def seen(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        # Of a Group, or what a call has come to: these pay for nothing more.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("labkit.comm.") or open_call.is_under_way() or are_tracing():
            return original(group, *args, **kwargs)
        calls = calls_in(group)
        carry_out = functools.partial(original, group, *args, **kwargs)
        if calls is None:
            return carry_out()
        passed = (*args, *kwargs.values())
        meant = _read(method, args, kwargs.get("root"), passed)
        num_places = _num_places(group, passed) if method.counts_lists else {1}
        return calls.by_place(meant, num_places, carry_out)

    return seen


def _messages(
    number: Callable[[dist.ProcessGroup], int], original: Callable[..., Any]
) -> Callable[..., Any]:
    def seen(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        carry_out = functools.partial(original, group, *args, **kwargs)
        return hand_over.messages(group, number(group), carry_out)

    return seen


def _num_in_barrier(group: dist.ProcessGroup) -> int:
    """Of a monitored one: rank 0 has a message from each other one, and sends one to each."""
    return 2 * (group.size() - 1) if group.rank() == 0 else 2


def _read(method: _Method, args: Sequence[Any], root: Any, passed: Sequence[Any]) -> Meant:
    """What the arguments of a method mean: an op and a root, or options with both.

    root: if it was given by name.
    """
    op: Any = dist.ReduceOp.SUM
    if root is None and method.root_at is not None and len(args) > method.root_at:
        root = args[method.root_at]
    for each in passed:
        if isinstance(each, dist.ReduceOp | dist.ReduceOp.RedOpType):
            op = each
        op = getattr(each, "reduceOp", op)
        root = getattr(each, "rootRank", root)
    reduce = reduce_of({"op": op}) if "reduce" in method.kind else None
    return Meant(method.kind, reduce, None if method.root_at is None else _number(root))


def _number(root: Any) -> int:
    try:
        return int(root or 0)
    except (TypeError, ValueError):
        return 0  # torch refuses it, in its own words


def _num_places(group: dist.ProcessGroup, passed: Sequence[Any]) -> set[int]:
    """A reduce_scatter of lists is a reduce to each rank, and one of several is one for each."""
    return {1, group.size(), *(len(each) for each in passed if isinstance(each, list))}

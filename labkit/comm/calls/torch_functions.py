"""torch.distributed's own functions, entered as calls before they are carried out.

A program may call them beside its Groups, or import a library that does. gloo takes what it gets:
with another reduce op on one rank the sum is wrong, with another root data is left where it was.
`install` puts a wrapper around each function that moves a tensor. What goes to C++ by another way
does not pass here: torch's own DDP, DTensor and torch.distributed._functional_collectives. Of that
the Flight Recorder knows kind, dtype and size (flight_recorder.py); for the rest, where it comes
out of Python, see by_place.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm import callbacks
from labkit.comm.calls import (
    compiled,
    functional_collectives,
    open_call,
    process_group_methods,
    worlds,
    wrapped_models,
)
from labkit.comm.calls.arguments import binder
from labkit.comm.calls.compared import CallsOfAProcess, of_this_process
from labkit.comm.calls.functional_collectives import are_tracing
from labkit.comm.calls.of_a_group import ComparedCalls
from labkit.comm.calls.open_call import OpenCall
from labkit.comm.calls.readings import COLLECTIVES, flat, reduce_of, splits_of, stand_in, tensors_of
from labkit.comm.calls.replaced import replace
from labkit.comm.torchs_groups import title

_MESSAGES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
# Each takes tables of its own, of which a process may have some tens of thousands. Both ends must
# leave out the same ones.
_NUM_TAGS = 4096
_inside = threading.local()


def install() -> None:
    """Wrap torch.distributed's functions. Before a program is read that takes them by name."""
    open_call.install()
    callbacks.install()
    for name in COLLECTIVES:
        _wrap(name, functools.partial(_enter_collective, name))
    for name, end in _MESSAGES.items():
        _wrap(name, functools.partial(_enter_message, end, blocking=name in ("send", "recv")))
    _wrap("new_group", _enter_new_group)
    functional_collectives.install(_calls_in)
    process_group_methods.install(_calls_in)
    worlds.install()
    wrapped_models.install()
    compiled.install()


def _wrap(name: str, enter: Callable[[CallsOfAProcess, dict[str, Any]], OpenCall | None]) -> None:
    original = getattr(c10d, name, None)  # another torch may not have it
    if original is None or hasattr(original, "_enters_calls"):
        return
    arguments_of = binder(original)

    @functools.wraps(original)
    def entered(*args: Any, **kwargs: Any) -> Any:
        calls = of_this_process()
        # One function of torch's may call another: what the reader called is what counts. What is
        # only traced meets nobody.
        if calls is None or getattr(_inside, "a_call", False) or are_tracing():
            return original(*args, **kwargs)
        arguments = arguments_of(args, kwargs)
        if arguments is None:
            return original(*args, **kwargs)  # it says what is wrong with them
        _inside.a_call = True
        try:
            call = enter(calls, arguments)
            if call is None:
                return original(*args, **kwargs)
            return _carried_out(call, original, args, kwargs)
        finally:
            _inside.a_call = False

    entered._enters_calls = True  # type: ignore[attr-defined]
    # Dynamo asks a function's code for its name, and knows messages by it.
    named: Any = entered
    named.__code__ = named.__code__.replace(co_name=name)
    replace(original, entered)


def _carried_out(
    call: OpenCall, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    open_call.under_way.call = call
    try:
        result = original(*args, **kwargs)
    except BaseException:
        call.refused()
        raise
    finally:
        open_call.under_way.call = None
    call.returned(result)
    return result


def _enter_collective(
    name: str, calls: CallsOfAProcess, arguments: dict[str, Any]
) -> OpenCall | None:
    group, tensors = _calls_of(calls, arguments), tensors_of(name, arguments)
    if group is None or tensors is None:
        return None
    reading = COLLECTIVES[name]
    root = _member(calls, group, arguments, reading.root) if reading.root else None
    splits = splits_of(name, arguments, group.size)
    return group.enter(
        reading.kind,
        stand_in(name, arguments, tensors),
        blocking=not arguments.get("async_op"),
        reduce=reduce_of(arguments),
        root=root,
        splits=splits,
        passed=tensors[0] if tensors else None,
    )


def _enter_message(
    end: str, calls: CallsOfAProcess, arguments: dict[str, Any], *, blocking: bool
) -> OpenCall | None:
    # Messages of another tag come in an order of their own.
    group, tag, x = None, arguments["tag"], arguments["tensor"]
    if isinstance(tag, int) and tag < _NUM_TAGS:
        group = _calls_of(calls, arguments, f" tag {tag}" if tag else "")
    if group is None or not isinstance(x, torch.Tensor):
        return None
    peer = _member(calls, group, arguments, end)
    if peer is None:
        if end == "src":
            group.receive_from_anybody()
        return None
    enter = group.enter_send if end == "dst" else group.enter_recv
    return enter(flat(x.numel(), x.dtype), peer, passed=x, blocking=blocking)


def _enter_new_group(calls: CallsOfAProcess, arguments: dict[str, Any]) -> OpenCall | None:
    # These take their name from their members, and not from how many there are already.
    if arguments["use_local_synchronization"] or not dist.is_initialized():
        return None
    ranks = arguments["ranks"]
    try:
        ranks = [int(rank) for rank in (range(dist.get_world_size()) if ranks is None else ranks)]
    except (TypeError, ValueError):
        return None  # torch says what is wrong with them
    if not all(0 <= rank < dist.get_world_size() for rank in ranks):
        return None
    if arguments.get("sort_ranks", True):
        ranks.sort()
    # In an order of their own: a collective may be under way meanwhile.
    group = _calls_of(calls, {}, " new groups")
    members = [calls.number_in_run(rank) for rank in ranks]
    if group is None:
        return None
    return group.enter_new_group(members, ends_by_itself=arguments["timeout"] is not None)


def _calls_in(process_group: Any) -> ComparedCalls | None:
    calls = of_this_process()
    return None if calls is None else _calls_of(calls, {"group": process_group})


def _calls_of(
    calls: CallsOfAProcess, arguments: dict[str, Any], suffix: str = ""
) -> ComparedCalls | None:
    """The calls of the process group that is meant; None where we are in none of other ranks.

    One that was destroyed is torch's to refuse; gloo carries out some operations of it.
    """
    process_group: Any = arguments.get("group") or dist.group.WORLD
    backend, _ = c10d._world.pg_map.get(process_group, (None, None))
    if backend in (None, worlds.FAKE) or process_group.rank() < 0:
        return None
    name = title(process_group.group_name) + suffix
    return calls.of(
        name, process_group, lambda: map(int, c10d.get_process_group_ranks(process_group))
    )


def _member(
    calls: CallsOfAProcess, group: ComparedCalls, arguments: dict[str, Any], end: str
) -> int | None:
    """Whom `src` or `dst` means, as a number in the group; None for nobody who is in it."""
    member, rank = arguments[f"group_{end}"], calls.number_in_run(arguments[end])
    if member is None and rank in group.ranks:
        member = group.ranks.index(rank)
    return member if member in range(group.size) else None

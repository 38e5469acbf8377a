"""torch's functional collectives: what they mean is compared by place in the process group.

    functional.all_reduce(x, "sum", group)    torch.distributed._functional_collectives; DTensor too

They go to C++ on a way of their own, past torch.distributed's functions. See by_place.py.

Dynamo traces what is in this file, and no other file of labkit.comm (compiled.py): there, a wrapper
is what it wraps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

from labkit.comm.calls.arguments import binder
from labkit.comm.calls.by_place import Meant
from labkit.comm.calls.of_a_group import ComparedCalls
from labkit.comm.calls.readings import reduce_of

CallsIn = Callable[[Any], "ComparedCalls | None"]
"""The calls of a process group; None where we are in none of other ranks."""
_KINDS = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
}
_REDUCES = {name: reduce_of({"op": op}) for op, name in functional.REDUCE_OP_TO_STR.items()}


def install(calls_in: CallsIn) -> None:
    """Wrap those that reduce, or have a root."""
    for name, kind in _KINDS.items():
        original = getattr(functional, name, None)  # a newer or older torch may not have it
        if original is not None and not hasattr(original, "_enters_places"):
            wrapped = _wrapped(original, kind, calls_in)
            wrapped._enters_places = True  # type: ignore[attr-defined]
            setattr(functional, name, wrapped)


def _wrapped(original: Callable[..., Any], kind: str, calls_in: CallsIn) -> Callable[..., Any]:
    arguments_of = binder(original)

    @functools.wraps(original)
    def handed_over(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        arguments = arguments_of(args, kwargs)
        if arguments is None:
            return original(*args, **kwargs)  # it says what is wrong with them
        # Ranks or a mesh are looked up here, and `original` gets what was found.
        group = functional._resolve_group(arguments["group"], arguments["tag"])
        carry_out = functools.partial(original, **{**arguments, "group": group})
        calls = calls_in(c10d._resolve_process_group(group) if isinstance(group, str) else group)
        return carry_out() if calls is None else calls.hand_over(_read(kind, arguments), carry_out)

    return handed_over


def _read(kind: str, arguments: dict[str, Any]) -> Meant:
    op = arguments.get("reduceOp")
    return Meant(
        kind, _REDUCES.get(op.lower()) if isinstance(op, str) else None, arguments.get("src")
    )

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
from labkit.comm.calls.compared import of_this_process
from labkit.comm.calls.of_a_group import CallsIn
from labkit.comm.calls.readings import reduce_of

_KINDS = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
}
# Before torch 2.13. Since then these call the others.
_OLDER_KINDS = {
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_autograd": "reduce_scatter",
}
_REDUCES = {name: reduce_of({"op": op}) for op, name in functional.REDUCE_OP_TO_STR.items()}
# Private, and older ones have another name, or none.
_resolve: Callable[[Any, str], Any] = (
    getattr(functional, "_resolve_group", None) or functional._resolve_group_name
)
_are_tracing: Callable[[], bool] = getattr(functional, "_are_we_tracing", lambda: False)


def are_tracing() -> bool:
    """Whether what this thread hands over goes nowhere: it is under a FakeTensorMode, or the like.

    Most threads are under no mode at all, and are asked for no more than that.
    """
    return torch._C._len_torch_dispatch_stack() > 0 and _are_tracing()


def install(calls_in: CallsIn) -> None:
    """Wrap those that reduce, or have a root."""
    is_older = not hasattr(functional, "reduce_scatter_single")
    for name, kind in (_KINDS | _OLDER_KINDS if is_older else _KINDS).items():
        original = getattr(functional, name, None)
        if original is not None and not hasattr(original, "_is_seen"):
            wrapped = _wrapped(original, kind, calls_in)
            wrapped._is_seen = True  # type: ignore[attr-defined]
            setattr(functional, name, wrapped)


def _wrapped(original: Callable[..., Any], kind: str, calls_in: CallsIn) -> Callable[..., Any]:
    arguments_of = binder(original)

    @functools.wraps(original)
    def seen(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        arguments = arguments_of(args, kwargs)
        if arguments is None or of_this_process() is None or are_tracing():
            return original(*args, **kwargs)  # torch says what is wrong with the arguments
        # Ranks or a mesh are looked up here, and `original` gets what was found.
        group = _resolve(arguments["group"], arguments["tag"])
        arguments["group"] = group
        carry_out = functools.partial(original, **arguments)
        if isinstance(group, str):
            group = c10d._resolve_process_group(group)  # type: ignore[arg-type]
        calls = calls_in(group)
        if calls is None:
            return carry_out()
        return calls.by_place(_read(kind, arguments), _num_places(arguments), carry_out)

    return seen


def _read(kind: str, arguments: dict[str, Any]) -> Meant:
    op = arguments.get("reduceOp")
    reduce = _REDUCES.get(op.lower()) if isinstance(op, str) else None
    return Meant(kind, reduce, arguments.get("src"))


def _num_places(arguments: dict[str, Any]) -> set[int]:
    """As how many collectives gloo may count it: one of several tensors as one for each."""
    return {1, *(len(each) for each in arguments.values() if isinstance(each, list))}

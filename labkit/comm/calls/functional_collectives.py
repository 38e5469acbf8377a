"""torch's functional collectives: what they mean is compared by place in the process group.

    functional.all_reduce(x, "sum", group)    torch.distributed._functional_collectives
    x.redistribute(placements=[Replicate()])  of a DTensor
    dist.all_reduce(x)                        in code of torch.compile's
    torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)

They go past torch.distributed's functions, and where Python hands one over, it calls an operator of
C++, `_op` of what is in torch.ops. There, an object that looks first takes its place: it has the
same hash and attributes, as torch has long put the operators into tables of its own. See
by_place.py; messages among them are counted, as in process_group_methods.py. What C++ calls by
itself does not come by: the backward of _c10d_functional_autograd, and Inductor's code in C++.

Wire: nothing is added.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.jit import _builtins

from labkit.comm import hand_over
from labkit.comm.calls.by_place import Meant
from labkit.comm.calls.compared import of_this_process
from labkit.comm.calls.of_a_group import CallsIn
from labkit.comm.calls.readings import reduce_of

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
# Those that reduce, or have a root. Not every torch has all of them, in both namespaces.
_KINDS = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
_MESSAGES = ("isend", "irecv", "batch_p2p_ops")
_REDUCES = {name: reduce_of({"op": op}) for op, name in functional.REDUCE_OP_TO_STR.items()}
_inside = threading.local()

_HandsOver = Callable[[c10d.ProcessGroup, dict[str, Any], Callable[[], Any]], Any]


def are_tracing() -> bool:
    """Whether what this thread hands over goes nowhere: it is under a FakeTensorMode, or the like.

    Most threads are under no mode at all, and are asked for no more than that.
    """
    return torch._C._len_torch_dispatch_stack() > 0 and functional._are_we_tracing()


def install(calls_in: CallsIn) -> None:
    """Put a SeenOperator in the place of each."""
    seen: dict[str, _HandsOver] = dict.fromkeys(_MESSAGES, _messages)
    for name, kind in _KINDS.items():
        seen[name] = functools.partial(_collective, kind, calls_in)
    for namespace in _NAMESPACES:
        for name, hands_over in seen.items():
            packet = getattr(getattr(torch.ops, namespace), name, None)
            if packet is None or isinstance(packet._op, SeenOperator):
                continue
            names = [each.name for each in packet.default._schema.arguments]
            for found in (packet, packet.default):
                found._op = SeenOperator(found._op, names, hands_over)
            # TorchScript, and torch.fx, know an operator by the object.
            _builtins._register_builtin(packet._op, packet._qualified_op_name)


class SeenOperator:
    """An operator of C++, and what is to be done as it hands over."""

    def __init__(
        self, original: Callable[..., Any], names: list[str], hands_over: _HandsOver
    ) -> None:
        """`names`: of its arguments."""
        self._original, self._names, self._hands_over = original, names, hands_over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __copy__(self) -> SeenOperator:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SeenOperator:
        return self

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What torch's gives."""
        if getattr(_inside, "an_operator", False):
            return self._original(*args, **kwargs)
        # Under a mode of the program's, or of torch's, C++ asks Python again for the same operator.
        _inside.an_operator = True
        try:
            return self._outermost(args, kwargs)
        finally:
            _inside.an_operator = False

    def _outermost(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        carry_out = functools.partial(self._original, *args, **kwargs)
        if are_tracing():
            return carry_out()
        arguments = dict(zip(self._names, args, strict=False)) | kwargs
        group = _group_of(arguments.get("group_name"))
        return carry_out() if group is None else self._hands_over(group, arguments, carry_out)


def _collective(
    kind: str,
    calls_in: CallsIn,
    group: c10d.ProcessGroup,
    arguments: dict[str, Any],
    carry_out: Callable[[], Any],
) -> Any:
    calls = None if of_this_process() is None else calls_in(group)
    if calls is None:
        return carry_out()
    op = arguments.get("reduce_op")
    reduce = _REDUCES.get(op.lower()) if isinstance(op, str) else None
    root = arguments.get("src")
    meant = Meant(kind, reduce, root if root is None else int(root))
    # gloo counts one of several tensors as one for each.
    return calls.by_place(meant, {1, len(arguments.get("inputs", [0]))}, carry_out)


def _messages(
    group: c10d.ProcessGroup, arguments: dict[str, Any], carry_out: Callable[[], Any]
) -> Any:
    return hand_over.messages(group, len(arguments.get("op_list", [0])), carry_out)


def _group_of(named: object) -> c10d.ProcessGroup | None:
    """None where torch is to say what is wrong with it."""
    if isinstance(named, c10d.ProcessGroup):
        return named
    try:
        return c10d._resolve_process_group(named)  # type: ignore[arg-type]
    except (RuntimeError, TypeError):
        return None

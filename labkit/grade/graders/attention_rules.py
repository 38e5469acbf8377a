"""What computes attention in the place of code that should: torch's kernels, and labkit.

Both are seen as they are called: torch's functions and operators by their names, labkit's by the
stack under functions of torch that compute.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from labkit.grade.gate import Gate
from labkit.grade.graders.live_storages import LiveStorages
from labkit.grade.rules import CalledTheAnswer, labkit_function_in_between, learner_site

# Parts of the names of functions without which nobody attends: a look at the stack takes time.
_COMPUTING = ("mm", "mul", "exp", "softmax", "einsum", "linear")


class OwnAttention(TorchFunctionMode):
    """Inside `with gate.watching(OwnAttention(gate)):`, what else computes attention is refused."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, unless it is the answer, or is called by it."""
        if not self._gate.is_open:  # else a group is communicating
            name = getattr(func, "__name__", "")
            require_own(name, self._gate)
            is_computing = any(part in name for part in _COMPUTING)
            caller = labkit_function_in_between() if is_computing else None
            if caller is not None:
                raise _refusal(caller, self._gate)
        return func(*args, **(kwargs or {}))


class AttentionStorages(LiveStorages):
    """LiveStorages that refuse torch's kernels of attention, however they are called."""

    def __init__(self, gate: Gate, **options: Any) -> None:
        """`options`: of LiveStorages."""
        super().__init__(gate=gate, **options)
        self._of_learner = gate

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As LiveStorages', for what is allowed."""
        require_own(str(func.overloadpacket), self._of_learner)
        return super().__torch_dispatch__(func, types, args, kwargs)


def require_own(name: str, gate: Gate) -> None:
    """Raise CalledTheAnswer where a function or an operator of that name computes attention."""
    if "attention" in name or "multi_head" in name:
        raise _refusal(f"torch's {name}", gate)


def _refusal(name: str, gate: Gate) -> Exception:
    message = f"{name} is the answer itself; write it with matrix products, max, exp and sum"
    return gate.refuse(CalledTheAnswer(message, learner_site()))

"""A gate in front of the network: communication passes only while the grader holds it open.

Every way to the wire that torch offers - torch.distributed's functions, a ProcessGroup's methods,
functional collectives, batched messages, pickled objects - becomes an operator of the namespace
c10d or _c10d_functional, and a dispatch mode sees every operator of its thread. So one gate
stands for all of them, and calls that were imported long before grading are caught as well.

Not caught: threads that the learner's code starts, and what does not go through torch at all
(files, sockets of its own). The judge compares journals with each other, and with what the kernel
counted on the sockets (ledger.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade.rules import BrokenRule, ForbiddenOperation, learner_site


class Gate(TorchDispatchMode):
    """Inside `with gate:`, communication outside `with gate.opened():` is a ForbiddenOperation.

    `broken` keeps what was raised, for code that catches every exception.
    Costs about 4 microseconds per operator of torch.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        """`allowed`: the operations that the message recommends instead."""
        super().__init__()
        self._allowed = allowed
        self._is_open = False
        self.broken: list[BrokenRule] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let communication through for the length of this block."""
        was_open, self._is_open = self._is_open, True
        try:
            yield
        finally:
            self._is_open = was_open

    def refuse(self, error: BrokenRule) -> BrokenRule:
        """Remember `error`; the caller raises it."""
        self.broken.append(error)
        return error

    def forbid(self, operation: str) -> BrokenRule:
        """The error for an operation that is not allowed; the caller raises it."""
        site = learner_site()
        return self.refuse(
            ForbiddenOperation(
                f"{operation} is not allowed in this exercise (called at {site}); "
                f"use {', '.join(f'group.{name}' for name in self._allowed)}",
                site,
            )
        )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, the default, imports torch._dynamo at the first operator: 3 seconds, on every rank.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, unless it communicates and the gate is closed."""
        if not self._is_open and "c10d" in func.namespace:
            raise self.forbid(f"torch.distributed ({func.overloadpacket})")
        return func(*args, **(kwargs or {}))

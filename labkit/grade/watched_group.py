"""The group that code under test is given: it allows less than a Group, and watches more.

Mistakes that the clock usually hides show every time:
- a sent tensor is compared, when its send is waited for, with what it was at the isend;
- a received tensor arrives in the learner's buffer only at wait(); until then the buffer holds
  NaN (or an odd number), so that reading it early cannot go unnoticed;
- a rank can be made slow, at random, before each operation.
"""

import random
import time
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch

from labkit.comm import Group, Pending
from labkit.comm.operation import Site
from labkit.grade.gate import Gate
from labkit.grade.rules import (
    CalledTheAnswer,
    ChangedInFlight,
    NeverWaited,
    labkit_function_in_between,
    learner_site,
)

Tensor = torch.Tensor
_ODD_NUMBER = 113  # fits every integer dtype


class WatchedPending:
    """A Pending of a watched group."""

    def __init__(self, group: "WatchedGroup", kind: str, pending: Pending, x: Tensor) -> None:
        """`x`: the learner's tensor. A send keeps a copy of it, a receive has its own buffer."""
        self._group, self._kind, self._pending, self._x = group, kind, pending, x
        self._at_post = _bytes(x).clone() if kind == "isend" else None
        self.site: Site = learner_site()
        self.is_done = False

    def wait(self) -> Tensor | None:
        """Block until the operation is complete; the received tensor, or None for a send."""
        if not self.is_done:
            with self._group.gate.opened():
                received = self._pending.wait()
            self.is_done = True
            if self._at_post is None:
                self._x.detach().copy_(received)
            elif not torch.equal(_bytes(self._x), self._at_post):
                raise self._group.gate.refuse(self._changed())
        return self._x if self._at_post is None else None

    def _changed(self) -> ChangedInFlight:
        where = f"the isend at {self.site} was waited for at {learner_site()}"
        return ChangedInFlight(
            f"a tensor of shape {tuple(self._x.shape)} changed while it was being sent: {where}, "
            "and something wrote to the tensor in between; wait first, or send a copy",
            self.site,
        )


class WatchedGroup:
    """`group`, for code under test."""

    def __init__(self, group: Group, gate: Gate, allowed: tuple[str, ...]) -> None:
        """`allowed`: operations that the exercise may use, of send, recv, isend and irecv."""
        self.rank, self.size = group.rank, group.size
        self.ranks, self.device = group.ranks, group.device
        self.gate = gate
        self._group = group
        self._allowed = allowed
        self._pendings: list[WatchedPending] = []
        self._delay_s, self._random = 0.0, random.Random()

    def begin_case(self, delay_s: float) -> None:
        """Forget the last case. Before each operation sleep for up to `delay_s`, at random."""
        self._pendings.clear()
        self._delay_s = delay_s

    def end_case(self) -> None:
        """Raise NeverWaited for the first operation that nobody waited for."""
        for pending in self._pendings:
            if not pending.is_done:
                message = (
                    f"the {pending._kind} at {pending.site} was never waited for: the function "
                    "returned while the operation was still under way; call wait() on its Pending"
                )
                raise self.gate.refuse(NeverWaited(message, pending.site))

    def isend(self, x: Tensor, dst: int) -> WatchedPending:
        """As Group.isend. What travels is a copy: nothing here depends on who is faster."""
        self._enter("isend")
        with self.gate.opened():
            copy = x.detach().clone() if isinstance(x, Tensor) else x
            pending = self._group.isend(copy, dst)
        return self._watched("isend", pending, x)

    def irecv(self, buffer: Tensor, src: int) -> WatchedPending:
        """As Group.irecv; `buffer` is spoiled until wait() fills it."""
        self._enter("irecv")
        with self.gate.opened():
            staging = torch.empty_like(buffer) if isinstance(buffer, Tensor) else buffer
            pending = self._group.irecv(staging, src)
        watched = self._watched("irecv", pending, buffer)
        is_number = buffer.is_floating_point() or buffer.is_complex()
        buffer.detach().fill_(float("nan") if is_number else _ODD_NUMBER)
        return watched

    def send(self, x: Tensor, dst: int) -> None:
        """As Group.send."""
        self._enter("send")
        with self.gate.opened():
            self._group.send(x, dst)

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        """As Group.recv."""
        self._enter("recv")
        with self.gate.opened():
            return self._group.recv(buffer, src)

    def region(self, name: str) -> AbstractContextManager[None]:
        """As Group.region."""
        return self._group.region(name)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a Group has is not allowed; what it does not have is named as such."""
        if name.startswith("_") or not hasattr(Group, name):
            raise AttributeError(
                f"a group has no {name!r}; here there are rank, size, device, ranks, region and "
                f"{', '.join(self._allowed)}"
            )

        def refuse(*args: object, **options: object) -> NoReturn:
            """Not allowed here."""
            raise self.gate.forbid(f"group.{name}")

        return refuse

    def _enter(self, operation: str) -> None:
        if operation not in self._allowed:
            raise self.gate.forbid(f"group.{operation}")
        function = labkit_function_in_between()
        if function is not None:
            message = f"{function} is the answer itself; write it with {', '.join(self._allowed)}"
            raise self.gate.refuse(CalledTheAnswer(message, learner_site()))
        if self._delay_s:
            time.sleep(self._random.uniform(0, self._delay_s))

    def _watched(self, kind: str, pending: Pending, x: Tensor) -> WatchedPending:
        watched = WatchedPending(self, kind, pending, x)
        self._pendings.append(watched)
        return watched


def _bytes(x: Tensor) -> Tensor:
    """x's elements as bytes: NaN equals itself there, and -0.0 differs from 0.0."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8)

"""The group that code under test is given: it allows less than a Group (guarded_group.py), and
watches more.

Mistakes that the clock usually hides show every time:
- a sent tensor is compared, when its send is waited for, with what it was at the isend;
- a received tensor arrives in the learner's buffer only at wait(); until then the buffer holds
  NaN (or an odd number), so that reading it early cannot go unnoticed, nor can writing to it;
- one message can be changed on its way: whoever computes with what arrives gets another result.
"""

import torch

from labkit.comm import Group, Pending
from labkit.comm.operation import Site
from labkit.grade.gate import Gate
from labkit.grade.guarded_group import GuardedGroup
from labkit.grade.rules import (
    BrokenRule,
    ChangedInFlight,
    NeverWaited,
    WrittenWhileReceiving,
    learner_site,
)

Tensor = torch.Tensor
_ODD_NUMBER = 113  # fits every integer dtype


class WatchedPending:
    """A Pending of a watched group."""

    def __init__(
        self, group: "WatchedGroup", kind: str, pending: Pending, x: Tensor, is_altered: bool
    ) -> None:
        """`x`: the learner's tensor, which must not change before wait(); a copy of it travels."""
        self._group, self._kind, self._pending, self._x = group, kind, pending, x
        self._at_post = _bytes(x).clone()
        self._is_altered = is_altered
        self.site: Site = learner_site()
        self.is_done = False

    def wait(self) -> Tensor | None:
        """Block until the operation is complete; the received tensor, or None for a send."""
        if not self.is_done:
            with self._group.gate.opened():
                received = self._pending.wait()
            self.is_done = True
            if not torch.equal(_bytes(self._x), self._at_post):
                raise self._group.gate.refuse(self._changed())
            if self._kind == "irecv":
                self._x.detach().copy_(_altered(received) if self._is_altered else received)
        return self._x if self._kind == "irecv" else None

    def _changed(self) -> BrokenRule:
        where = f"the {self._kind} at {self.site} was waited for at {learner_site()}"
        shape = tuple(self._x.shape)
        if self._kind == "irecv":
            return WrittenWhileReceiving(
                f"a buffer of shape {shape} changed while a message was on its way into it: "
                f"{where}, and something wrote to the buffer in between, perhaps another receive "
                "into the same memory; give each receive under way a buffer of its own, and leave "
                "it alone until wait()",
                self.site,
            )
        return ChangedInFlight(
            f"a tensor of shape {shape} changed while it was being sent: {where}, "
            "and something wrote to the tensor in between; wait first, or send a copy",
            self.site,
        )


class WatchedGroup(GuardedGroup):
    """A guarded group that watches messages, too."""

    def __init__(self, group: Group, gate: Gate, allowed: tuple[str, ...]) -> None:
        """`allowed`: operations that the exercise may use."""
        super().__init__(group, gate, allowed)
        self._pendings: list[WatchedPending] = []
        self._num_received = 0
        self._altered: int | None = None

    def begin_case(self, delay_s: float, altered: int | None = None) -> None:
        """Forget the last case. Before each operation sleep for up to `delay_s`, at random.

        altered: the number, from 1, of the received message that is to be changed on its way.
        """
        super().begin_case(delay_s)
        self._pendings.clear()
        self._num_received, self._altered = 0, altered

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
        return self._watched("isend", pending, x, is_altered=False)

    def irecv(self, buffer: Tensor, src: int) -> WatchedPending:
        """As Group.irecv; `buffer` is spoiled until wait() fills it."""
        is_altered = self._enter_receive("irecv")
        with self.gate.opened():
            staging = torch.empty_like(buffer) if isinstance(buffer, Tensor) else buffer
            pending = self._group.irecv(staging, src)
        is_number = buffer.is_floating_point() or buffer.is_complex()
        buffer.detach().fill_(float("nan") if is_number else _ODD_NUMBER)
        return self._watched("irecv", pending, buffer, is_altered)

    def send(self, x: Tensor, dst: int) -> None:
        """As Group.send."""
        self._enter("send")
        with self.gate.opened():
            self._group.send(x, dst)

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        """As Group.recv."""
        is_altered = self._enter_receive("recv")
        with self.gate.opened():
            received = self._group.recv(buffer, src)
        return _altered(received) if is_altered else received

    def _enter_receive(self, operation: str) -> bool:
        """As `_enter`; whether this is the message to change."""
        self._enter(operation)
        self._num_received += 1
        return self._num_received == self._altered

    def _watched(self, kind: str, pending: Pending, x: Tensor, is_altered: bool) -> WatchedPending:
        watched = WatchedPending(self, kind, pending, x, is_altered)
        self._pendings.append(watched)
        return watched


def _altered(x: Tensor) -> Tensor:
    """`x`, with one more in its first element."""
    if x.numel():
        x.detach()[(0,) * x.dim()] += 1
    return x


def _bytes(x: Tensor) -> Tensor:
    """x's elements as bytes: NaN equals itself there, and -0.0 differs from 0.0."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8)

"""The group that code under test is given: it allows less than a Group (guarded_group.py), and
watches more.

Mistakes that the clock usually hides show every time:
- a sent tensor is compared, when its send is waited for, with what it was at the isend;
- a received tensor arrives in the learner's buffer only at wait(); until then the buffer holds
  NaN (or an odd number), so that reading it early cannot go unnoticed, nor can writing to it;
- so does what a collective with wait=False leaves in its `out`;
- one message can be changed on its way: whoever computes with what arrives gets another result.
  So can what one rank passes to one of its collectives.
"""

from typing import Any, cast

import torch

from labkit.comm import Group, Pending
from labkit.comm.operation import Site
from labkit.grade.exact import bytes_of
from labkit.grade.gate import Gate
from labkit.grade.guarded_group import GuardedGroup
from labkit.grade.rules import (
    BrokenRule,
    ChangedInFlight,
    NeverWaited,
    WrittenWhileReceiving,
    learner_site,
)
from labkit.grade.tampering import change_one, spoil

Tensor = torch.Tensor
_A_NUMBER_BYTES = 8


class WatchedPending:
    """A Pending of a watched group."""

    def __init__(
        self,
        group: "WatchedGroup",
        kind: str,
        pending: Pending[Any],
        x: Tensor | None,
        is_altered: bool,
    ) -> None:
        """`x`: the learner's tensor, which must not change before wait(); a copy of it travels.

        None for a collective with a result of its own.
        """
        self._group, self._kind, self._pending, self._x = group, kind, pending, x
        self._at_post = None if x is None else bytes_of(x).clone()
        self._is_altered = is_altered
        self.site: Site = learner_site()
        self.is_done = False
        self._result: Tensor | None = None

    def wait(self) -> Tensor | None:
        """Block until the operation is complete; its result, or None for a send."""
        if not self.is_done:
            with self._group.gate.opened():
                received = self._pending.wait()
            self.is_done = True
            self._group.forget(self)
            if self._x is None:
                self._result = received
                return self._result
            if not torch.equal(bytes_of(self._x), cast(Tensor, self._at_post)):
                raise self._group.gate.refuse(self._changed(self._x.shape))
            if self._kind == "isend":
                self._x = self._at_post = None  # what has been sent lives on only with the learner
            else:
                self._x.detach().copy_(change_one(received) if self._is_altered else received)
                self._result = self._x
        return self._result

    def _changed(self, of_shape: torch.Size) -> BrokenRule:
        where = f"the {self._kind} at {self.site} was waited for at {learner_site()}"
        shape = tuple(of_shape)
        if self._kind not in ("isend", "irecv"):
            return WrittenWhileReceiving(
                f"a tensor of shape {shape} changed while its {self._kind} was under way: {where}, "
                "and something wrote to it in between. It belongs to the operation until wait(): "
                "compute with the result, after it",
                self.site,
            )
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
        self._num_received = self._num_collectives = 0
        self._altered: int | None = None

    def begin_case(self, delay_s: float, altered: int | None = None) -> None:
        """Forget the last case. Before each operation sleep for up to `delay_s`, at random.

        altered: the number, from 1, of the received message, or of the collective, that is to be
        changed on its way. Messages of a few bytes do not count: they may say how long another is.
        """
        super().begin_case(delay_s)
        self._pendings.clear()
        self._num_received = self._num_collectives = 0
        self._altered = altered

    def forget(self, pending: WatchedPending) -> None:
        """It is done: what it has received lives on only where the learner keeps it."""
        self._pendings = [each for each in self._pendings if each is not pending]

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
        is_altered = self._enter_receive("irecv", buffer)
        with self.gate.opened():
            staging = torch.empty_like(buffer) if isinstance(buffer, Tensor) else buffer
            pending = self._group.irecv(staging, src)
        spoil(buffer)
        return self._watched("irecv", pending, buffer, is_altered)

    def send(self, x: Tensor, dst: int) -> None:
        """As Group.send."""
        self._enter("send")
        with self.gate.opened():
            self._group.send(x, dst)

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        """As Group.recv."""
        is_altered = self._enter_receive("recv", buffer)
        with self.gate.opened():
            received = self._group.recv(buffer, src)
        return change_one(received) if is_altered else received

    def _perform(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """As a guarded group's; `out` is spoiled until wait() fills it."""
        out = options.get("out")
        if options.get("wait", True) or not isinstance(out, Tensor):
            result = super()._perform(name, args, options)
            if not isinstance(result, Pending):
                return result
            return self._watched(name, result, None, is_altered=False)
        pending = super()._perform(name, args, {**options, "out": torch.empty_like(out)})
        spoil(out)
        return self._watched(name, pending, out, is_altered=False)

    def _passed(self, x: Any) -> Any:
        """What a collective gets for x: another tensor, where this is the one to change."""
        self._num_collectives += 1
        is_altered = self._num_collectives == self._altered and isinstance(x, Tensor)
        return change_one(x.clone()) if is_altered else x

    def _enter_receive(self, operation: str, buffer: Any) -> bool:
        """As `_enter`; whether this is the message to change."""
        self._enter(operation)
        if not isinstance(buffer, Tensor) or buffer.nbytes <= _A_NUMBER_BYTES:
            return False
        self._num_received += 1
        return self._num_received == self._altered

    def _watched(
        self, kind: str, pending: Pending[Any], x: Tensor | None, is_altered: bool
    ) -> WatchedPending:
        watched = WatchedPending(self, kind, pending, x, is_altered)
        self._pendings.append(watched)
        return watched

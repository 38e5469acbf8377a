"""send and recv, and their non-blocking forms."""

from __future__ import annotations

from typing import Any

import torch

from labkit.comm import checks
from labkit.comm.agreement.agreement import hashed
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.pairs import RECEIVER, SENDER
from labkit.comm.member import Member
from labkit.comm.named_spans import current_label
from labkit.comm.pending import Pending

_TAG = 0  # messages between two ranks arrive in the order in which they were sent


class PointToPoint(Member):
    """Messages from one rank to another, in order.

    The buffer must have the message's shape and dtype, or the later of the two calls raises
    Disagreement. (gloo itself ends the receiving process for a message that is too long, and fills
    part of the buffer, without a word, for one that is too short.) What messages of one shape are
    for, `label` says.

    Rendezvous: a send completes only when the other side receives. Two ranks that both send first
    and receive afterwards wait for each other for ever; post one of the two with isend or irecv.

    In a run with a topology messages take the time of its links: see pacing/.
    """

    def send(self, x: torch.Tensor, dst: int) -> None:
        """Send `x` to rank `dst`; returns when `dst` has received it. Wire: x's bytes."""
        self._send(x, dst, blocking=True)

    def isend(self, x: torch.Tensor, dst: int) -> Pending[None]:
        """Begin to send `x` to rank `dst`. `x` must not change before `wait()` returns."""
        return self._send(x, dst, blocking=False)

    def recv(self, buffer: torch.Tensor, src: int) -> torch.Tensor:
        """Receive from rank `src` into `buffer`, which has the message's shape; returns it."""
        return self._recv(buffer, src, blocking=True)

    def irecv(self, buffer: torch.Tensor, src: int) -> Pending[torch.Tensor]:
        """Begin to receive from rank `src` into `buffer`; `wait()` returns the filled buffer."""
        return self._recv(buffer, src, blocking=False)

    def _send(self, x: torch.Tensor, dst: int, *, blocking: bool) -> Any:
        x = checks.tensor(x, self)
        checks.peer(dst, self, "dst")
        self._num_sent[dst] += 1
        record = self._post_message("send", dst, self._num_sent[dst], x, blocking)
        source = x.contiguous()

        def finish(kept: torch.Tensor = source) -> None:
            """Holds on to what is on the wire until it has left."""

        return self._started(
            lambda: self._process_group.send([source], dst, _TAG),
            finish,
            record,
            blocking,
        )

    def _recv(self, buffer: torch.Tensor, src: int, *, blocking: bool) -> Any:
        x = checks.target(buffer, self)
        checks.peer(src, self, "src")
        self._num_received[src] += 1
        record = self._post_message("recv", src, self._num_received[src], x, blocking)
        target = x.contiguous()

        def finish() -> torch.Tensor:
            if target is not x:
                x.copy_(target)
            return buffer

        return self._started(
            lambda: self._process_group.recv([target], src, _TAG),
            finish,
            record,
            blocking,
        )

    def _post_message(
        self, kind: str, peer: int, number: int, x: torch.Tensor, blocking: bool
    ) -> int:
        """Enter one end of a message in the journal, if the other end fits it."""
        self._agreement.require_in_step()
        label = current_label()
        role = SENDER if kind == "send" else RECEIVER
        self._agreement.pairs.declare_message(peer, role, number, hashed(label, x.dtype, x.shape))
        record = self._journal.post(
            kind,
            self._journal_group,
            number,
            x,
            sent_bytes=x.nbytes if role == SENDER else 0,
            received_bytes=x.nbytes if role == RECEIVER else 0,
            blocking=blocking,
            peer=self.ranks[peer],
            label=label,
        )
        try:
            self._agreement.pairs.compare_messages(peer, role)
        except Disagreement as why:
            self._refuse(record, why)
            raise
        return record

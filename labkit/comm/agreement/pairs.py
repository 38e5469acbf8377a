"""What goes from one member of a group to another: both ends say how they mean it.

    world.0-1       a row per message from 0 to 1, see messages.py
    world.0-1.rows  a row per all_to_all: how many rows 0 sends to 1, how many 1 expects

Wire: nothing; tables in memory that the ranks of one host share (shared_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.comm.agreement.messages import RECEIVER, SENDER, Messages
from labkit.comm.agreement.neighbours import Witness
from labkit.comm.agreement.shared_rows import SharedRows


class Pairs:
    """One member and each of the others, as to messages and the rows of an all_to_all."""

    def __init__(self, tables: str, witness: Witness, member: int, others: Sequence[int]) -> None:
        """`tables`: how the group's files begin; `others`: the members on our host, but us."""
        self._tables, self._witness = tables, witness
        self._member, self._others = member, others
        self._messages: dict[tuple[int, int], Messages] = {}
        self._rows: dict[tuple[int, int], SharedRows] = {}

    def declare_message(
        self, peer: int, role: int, number: int, meant: bytes, item: bytes = b""
    ) -> None:
        """Say what the n-th message to `peer` is (role SENDER), or from it (RECEIVER).

        item: the parameter that it is for; `compare_messages` follows.
        """
        if peer not in self._others:
            return
        messages = self._messages.get((peer, role))
        if messages is None:
            messages = self._messages[peer, role] = Messages(self._path(peer, role), role)
        messages.declare(number, meant, item)

    def take_back_message(self, peer: int, role: int) -> None:
        """Our last message to `peer`, or from it, has not come about."""
        messages = self._messages.get((peer, role))
        if messages is not None:
            messages.take_back()

    def compare_messages(self, peer: int, role: int) -> None:
        """Look at the other end of our messages. Raises Disagreement."""
        messages = self._messages.get((peer, role))
        for number, only_in_order in messages.differing() if messages is not None else ():
            testify = self._witness.testify_on_message
            if only_in_order:
                testify = self._witness.testify_on_order_of_messages
            testify(number, peer, sends=role == SENDER)

    def compare_what_is_left(self) -> None:
        """Look at ends of messages that were not there when we compared. Raises Disagreement."""
        for peer, role in list(self._messages):
            self.compare_messages(peer, role)

    def declare_rows(self, sequence: int, sent: Sequence[int], received: Sequence[int]) -> None:
        """Say how many rows go to and come from each member in our n-th collective."""
        for peer in self._others:
            for role, rows in ((SENDER, sent[peer]), (RECEIVER, received[peer])):
                self._rows_with(peer, role).write(sequence, rows.to_bytes(8, "little"))

    def take_back_rows(self, sequence: int) -> None:
        """Our n-th collective has not come about."""
        for table in self._rows.values():
            table.erase(sequence)

    def compare_rows(self, sequence: int) -> None:
        """Look at the others' rows of our n-th collective, an all_to_all. Raises Disagreement."""
        for peer in self._others:
            for role in (SENDER, RECEIVER):
                table = self._rows_with(peer, role)
                theirs = table.read(sequence, 1 - role)
                if theirs is not None and theirs != table.read(sequence, role):
                    self._witness.testify_on_collective(sequence, peer)
                table.forget_before(sequence)

    def _rows_with(self, peer: int, role: int) -> SharedRows:
        table = self._rows.get((peer, role))
        if table is None:
            path = f"{self._path(peer, role)}.rows"
            table = self._rows[peer, role] = SharedRows(path, 2, role)
        return table

    def _path(self, peer: int, role: int) -> str:
        source, target = (self._member, peer) if role == SENDER else (peer, self._member)
        return f"{self._tables}.{source}-{target}"

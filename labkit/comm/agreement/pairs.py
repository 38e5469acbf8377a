"""What goes from one member of a group to another: both ends say how they mean it.

    world.0-1       a row per message from 0 to 1: the sender's entry, the receiver's, each a hash
                    of label, dtype and shape
    world.0-1.rows  a row per all_to_all: how many rows 0 sends to 1, how many 1 expects

Wire: nothing; tables in memory that the ranks of one host share (shared_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.comm.agreement.shared_rows import SharedRows
from labkit.comm.agreement.witness import Witness

SENDER, RECEIVER = 0, 1


@dataclass
class _Messages:
    """Those from one member to another, seen from one end."""

    rows: SharedRows
    declared: int = 0
    compared: int = 0


class Pairs:
    """One member and each of the others, as to messages and the rows of an all_to_all."""

    def __init__(self, tables: str, witness: Witness, member: int, others: Sequence[int]) -> None:
        """`tables`: how the group's files begin; `others`: the members on our host, but us."""
        self._tables, self._witness = tables, witness
        self._member, self._others = member, others
        self._messages: dict[tuple[int, int], _Messages] = {}
        self._rows: dict[tuple[int, int], SharedRows] = {}

    def declare_message(self, peer: int, role: int, number: int, meant: bytes) -> None:
        """Say what the n-th message to `peer` is (role SENDER), or from it (RECEIVER)."""
        if peer not in self._others:
            return
        messages = self._messages.get((peer, role))
        if messages is None:
            rows = SharedRows(self._path(peer, role), 2, role)
            messages = self._messages[peer, role] = _Messages(rows)
        messages.declared = number
        messages.rows.write(number, meant)

    def compare_messages(self, peer: int, role: int) -> None:
        """Look at the other end of our messages so far. Raises Disagreement."""
        messages = self._messages.get((peer, role))
        while messages is not None and messages.compared < messages.declared:
            number = messages.compared + 1
            theirs = messages.rows.read(number, 1 - role)
            if theirs is None:
                return
            messages.compared = number
            if theirs != messages.rows.read(number, role):
                self._witness.testify_on_message(number, peer, sends=role == SENDER)
            messages.rows.tidy(number)

    def compare_what_is_left(self) -> None:
        """Look at ends of messages that were not there when we compared. Raises Disagreement."""
        for peer, role in list(self._messages):
            self.compare_messages(peer, role)

    def declare_rows(self, sequence: int, sent: Sequence[int], received: Sequence[int]) -> None:
        """Say how many rows go to and come from each member in our n-th collective."""
        for peer in self._others:
            for role, rows in ((SENDER, sent[peer]), (RECEIVER, received[peer])):
                self._rows_with(peer, role).write(sequence, rows.to_bytes(8, "little"))

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

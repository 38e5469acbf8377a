"""What this process has handed to torch without a Group, kept longer than torch's record keeps it.

The Flight Recorder overwrites its oldest entries, and a Group's operations come to it as well. So
its entries are taken over as they fill it, in a few bytes each, and ranks' are compared when they
have returned. A program that only uses Groups pays for nothing of it: its journal has as many
collectives as torch, and its Groups have compared them.

    enqueued    . . . . . . . . . . . . . . . . . . . . . .
    ours        . . . . . . . . .                             taken over, or all of a Group's
    record                  . . . . . . . . . . . . . . . .   the rest is there: nothing is lost
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable

from labkit.comm import flight_recorder, torchs_groups
from labkit.comm.recorded import HandedOver, Meaning

_FULL = 0.75  # the rest is for what is handed over between two looks


class PastTheGroups:
    """Collectives of this process, if it handed over some without a Group. Any thread."""

    def __init__(self) -> None:
        """Nothing is handed over yet."""
        self._lock = threading.Lock()
        self._numbers: dict[Meaning, int] = {}
        self._by_group: dict[str, array[int]] = {}
        # How many were handed over without a Group when torch's record was last read.
        self._num_foreign = 0
        # Up to here nothing is needed any more, by torch's own count of its entries ...
        self._next = 0
        # ... which leaves out what has a number and no entry, such as a monitored_barrier.
        self._num_without_entry = 0
        self._num_lost = 0

    def keep_up(self, num_in_journal: Callable[[], int]) -> None:
        """Read torch's record, if it will soon overwrite what is needed. Several times a second."""
        with self._lock:
            before = num_in_journal()
            enqueued = sum(flight_recorder.num_enqueued().values())
            if num_in_journal() != before:
                return  # how many are not in the journal is not known of any one moment
            num_entries = enqueued - self._num_without_entry
            if enqueued - before <= self._num_foreign:
                self._next = max(self._next, num_entries)  # since then a Group's only
            elif num_entries - self._next >= _FULL * _capacity():
                self._read(enqueued - before)

    def take(self, num_in_journal: int) -> HandedOver:
        """All of them, once the program has come to its end; what is lost is told once."""
        with self._lock:
            enqueued = sum(flight_recorder.num_enqueued().values())
            if enqueued - num_in_journal > self._num_foreign:
                self._read(enqueued - num_in_journal)
            lost, self._num_lost = self._num_lost, 0
            # Copies: another thread may enter more while these are on their way to the driver.
            by_group = {group: numbers[:] for group, numbers in self._by_group.items()}
            return HandedOver(list(self._numbers), by_group, lost)

    def _read(self, num_foreign: int) -> None:
        """Take over what is new. (It costs 15 us for each entry that torch has.)"""
        dump = flight_recorder.dump_without_stacks()
        entries = dump.get("entries", [])
        if not entries:
            return
        names = torchs_groups.names_of(entries)
        for entry in entries:
            # (A message bears the number of the collective before it.) Of groups that torch gave no
            # name nobody knows which ranks are in the same one.
            if not entry.get("is_p2p") and torchs_groups.group_of(entry):
                self._enter(
                    names[entry["pg_id"]],
                    entry["collective_seq_id"],
                    flight_recorder.meaning(entry),
                )
        self._num_lost += max(entries[0]["record_id"] - self._next, 0)
        self._next = entries[-1]["record_id"] + 1
        self._num_without_entry = sum(flight_recorder.counts(dump).values()) - self._next
        self._num_foreign = num_foreign

    def _enter(self, group: str, sequence: int, meaning: Meaning) -> None:
        numbers = self._by_group.setdefault(group, array("I"))
        numbers.extend([0] * (sequence - len(numbers)))
        numbers[sequence - 1] = self._numbers.setdefault(meaning, len(self._numbers) + 1)


def _capacity() -> int:
    return int(os.environ.get("TORCH_FR_BUFFER_SIZE") or flight_recorder.NUM_COLLECTIVES)

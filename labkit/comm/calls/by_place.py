"""Reduce ops and roots of collectives that are no calls, compared by place in the process group.

    functional.all_reduce(x, "max", group)    torch's functional collectives; its DTensor's too
    group.allreduce([x], options)             a ProcessGroup's own methods

Not all ranks need to come by here on their way to one collective: compiled code, for one, hands it
over in C++. So these are not counted as calls are. torch's own record has all of them, and compares
kind, dtype and size in the end; what it lacks is entered in a table, in the row of the place that
the collective has got in its process group (hand_over.py), and compared with what is there.

    world.places    a row per collective, an entry per member: what it is, and the reader's line

The place is known once the collective is handed over. So a rank may have got a wrong sum before
another one finds that they differ; but one of them does, and ends the run.

Wire: nothing; memory that the ranks of one host share.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.comm.agreement.difference import ADVICE, Aspect
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.shared_rows import SharedRows
from labkit.comm.record import KIND_CODE, KINDS, NO_PEER, REDUCE_CODE, REDUCES

# Kind, reduce op and root; then the last part of the file's name, and the line.
_MEANING = struct.Struct("<BBxxi")
_ENTRY = struct.Struct(f"<{_MEANING.size}s24sQ")
_LOOK_AGAIN_S = 0.001


class Meant(NamedTuple):
    """What a collective means beyond its tensor."""

    kind: str
    reduce: str | None = None
    root: int | None = None
    """A number in the group."""


class Places:
    """Collectives of one process group by their place in it, seen from one member."""

    def __init__(self, tables: Path, name: str, ranks: Sequence[int], member: int) -> None:
        """`ranks`: the members, by their numbers in the run; `member`: which of them we are."""
        path = tables / f"{name.replace('/', '-')}.places"
        self._table = SharedRows(path, len(ranks), member)
        self._name, self._ranks, self._member = name, tuple(ranks), member

    def enter(self, place: int, meant: Meant, file: str, line: int) -> None:
        """Say what we have handed over as the n-th collective, and where. Raises Disagreement."""
        root = NO_PEER if meant.root is None else meant.root
        ours = _MEANING.pack(KIND_CODE[meant.kind], REDUCE_CODE[meant.reduce], root)
        name = os.path.basename(file).encode()[-24:].ljust(24, b"\0")
        self._table.write(place, ours, name[:8], name[8:16], name[16:], line)
        for other in range(len(self._ranks)):
            if other != self._member and self._meaning(place, other) not in (None, ours):
                time.sleep(_LOOK_AGAIN_S)  # the entry may not have been whole, see shared_rows.py
                if self._meaning(place, other) != ours:
                    raise Disagreement(self._text(place, other))
        self._table.forget_before(place)

    def _meaning(self, place: int, member: int) -> bytes | None:
        entry = self._table.read(place, member)
        return None if entry is None else entry[: _MEANING.size]

    def _text(self, place: int, other: int) -> str:
        ours, our_file, _ = self._read(place, self._member)
        theirs, its_file, line = self._read(place, other)
        here, there = self._ranks[self._member], self._ranks[other]
        at = f"line {line}" if its_file == our_file else f"{its_file}, line {line}"
        which = f"collective #{place} of {self._name}"
        if ours.kind != theirs.kind:
            said = f"rank {here} calls {ours.kind}, and rank {there} {theirs.kind} ({at})"
            return f"as {which}, {said}. {_advice(Aspect.KIND)}"
        aspect = Aspect.ROOT if ours.reduce == theirs.reduce else Aspect.REDUCE
        if aspect is Aspect.ROOT:
            root, its_root = (f"rank {self._ranks[root or 0]}" for root in (ours.root, theirs.root))
            said = f"rank {here} names {root} as the root, and rank {there} {its_root} ({at})"
        else:
            said = (
                f"rank {here} reduces by {ours.reduce}, and rank {there} by {theirs.reduce} ({at})"
            )
        return f"in {ours.kind}, {which}, {said}. {_advice(aspect)}"

    def _read(self, place: int, member: int) -> tuple[Meant, str, int]:
        """An entry that is there: what it means, the file's name and the line."""
        entry = self._table.read(place, member)
        assert entry is not None
        meaning, file, line = _ENTRY.unpack(entry)
        kind, reduce, root = _MEANING.unpack(meaning)
        meant = Meant(KINDS[kind - 1], REDUCES[reduce], None if root == NO_PEER else root)
        return meant, file.rstrip(b"\0").decode(errors="replace"), line


def _advice(aspect: Aspect) -> str:
    return ADVICE[aspect].removesuffix(".")  # whoever tells the verdict adds one

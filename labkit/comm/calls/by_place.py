"""Reduce ops and roots of collectives that are no calls, compared by place in the process group.

    functional.all_reduce(x, "max", group)    torch's functional collectives; its DTensor's too
    group.allreduce([x], options)             a ProcessGroup's own methods

Not all ranks need to come by here on their way to one collective: in compiled code a call becomes a
functional one, and DDP hands over in C++. So these are not counted as calls are. torch's own record
has all of them, and compares kind, dtype and size in the end; what it lacks is entered in a table,
in the row of the place that the collective has got in its process group (hand_over.py), and
compared with what is there.

    world.places    a row per collective, an entry per member: what it is, and the reader's line

The place is known once the collective is handed over. So a rank may have got a wrong sum before
another one finds that they differ. Where places are not known, nothing is said: on nccl, or while
other threads hand over to the same process group.

Wire: nothing; memory that the ranks of one host share.
"""

from __future__ import annotations

import functools
import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.comm.agreement.difference import ADVICE, Aspect
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.shared_rows import SharedRows
from labkit.comm.record import KIND_CODE, KINDS, NO_PEER, REDUCE_CODE, REDUCES

_MEANING = struct.Struct("<BBxxi")  # kind, reduce op and root
_FILE_BYTES = 24  # the end of its name: the whole of it is compared by a hash
_ENTRY = struct.Struct(f"<{_MEANING.size}s{_FILE_BYTES}sII")
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
        """Say what we have handed over as the n-th collective, and where. Raises Disagreement.

        Of two that do this at the same time the later one sees the other's entry: between writing
        and looking lie microseconds, and a processor keeps a store to itself for nanoseconds.
        """
        ours = _packed(meant)
        name, path = _named(file)
        self._table.write(place, ours, name[:8], name[8:16], name[16:], line | path << 32)
        for other in range(len(self._ranks)):
            if other != self._member and self._differs(place, other, ours):
                time.sleep(_LOOK_AGAIN_S)  # the entry may not have been whole, see shared_rows.py
                theirs = self._table.read(place, other)
                if theirs is not None and theirs[: _MEANING.size] != ours:
                    raise Disagreement(self._text(place, other, meant, path, theirs))
        self._table.forget_before(place)

    def _differs(self, place: int, other: int, ours: bytes) -> bool:
        theirs = self._table.read(place, other)
        return theirs is not None and theirs[: _MEANING.size] != ours

    def _text(self, place: int, other: int, ours: Meant, path: int, entry: bytes) -> str:
        meaning, name, line, its_path = _ENTRY.unpack(entry)
        theirs = _unpacked(meaning)
        here, there = self._ranks[self._member], self._ranks[other]
        at = f"line {line}"
        if its_path != path:
            at = f"{name.rstrip(bytes(1)).decode(errors='replace')}, {at}"
        which = f"collective #{place} of {self._name}"
        if ours.kind != theirs.kind:
            said = f"rank {here} calls {ours.kind}, and rank {there} {theirs.kind} ({at})"
            return f"as {which}, {said}. {_advice(Aspect.KIND)}"
        aspect = Aspect.ROOT if ours.reduce == theirs.reduce else Aspect.REDUCE
        if aspect is Aspect.ROOT:
            root, its_root = (f"rank {self._ranks[each.root or 0]}" for each in (ours, theirs))
            said = f"rank {here} names {root} as the root, and rank {there} {its_root} ({at})"
        else:
            our, its = ours.reduce, theirs.reduce
            said = f"rank {here} reduces by {our}, and rank {there} by {its} ({at})"
        return f"in {ours.kind}, {which}, {said}. {_advice(aspect)}"


@functools.lru_cache(1024)
def _packed(meant: Meant) -> bytes:
    root = NO_PEER if meant.root is None else meant.root
    return _MEANING.pack(KIND_CODE[meant.kind], REDUCE_CODE[meant.reduce], root)


def _unpacked(meaning: bytes) -> Meant:
    kind, reduce, root = _MEANING.unpack(meaning)
    return Meant(KINDS[kind - 1], REDUCES[reduce], None if root == NO_PEER else root)


@functools.lru_cache(1024)
def _named(file: str) -> tuple[bytes, int]:
    """The last part of a file's name, `cell 7` for <cell 7>, and what tells files apart."""
    name = os.fsencode(os.path.basename(file).strip("<>"))[-_FILE_BYTES:]
    return name.ljust(_FILE_BYTES, bytes(1)), zlib.crc32(os.fsencode(file))


def _advice(aspect: Aspect) -> str:
    return ADVICE[aspect].removesuffix(".")  # whoever tells the verdict adds one

"""Plan the reads with which a rank of another layout loads its shards.

An interviewer asks: "A checkpoint was saved by 64 ranks with ZeRO-3, and the job restarts on 48
with tensor parallelism. How does each rank get its shards, without anybody gathering the model?"

Write reshard_plan(saved, wanted). Tensors are matrices. A part of one is

    ("range", start, stop)                   elements start to stop - 1, counted row by row: ZeRO
    ("box", (top, bottom), (left, right))    rows top to bottom - 1, columns left to right - 1:
                                             tensor parallelism

    ("range", 7, 11)        ("box", (1, 3), (2, 4))
    . . . . .               . . . . .
    . . a b c               . . a b .
    d . . . .               . . c d .

In a file, and in a rank's memory, the elements of a part follow each other: a b c d.

    saved    a dict: saved[name] = (shape, itemsize, pieces) for each tensor of the checkpoint
             shape     (rows, columns) of the whole tensor
             itemsize  bytes of an element
             pieces    a list of (file, offset, part): `file` has the elements of `part`, the first
                       one at byte `offset`. Together the pieces have every element. Some may be
                       replicas: two pieces have the same elements, or none in common
    wanted   a dict: wanted[name] = part, what this rank holds of the tensor. A part can
             be empty

Contract
    returns  a list of reads (name, file, offset, length, place): copy `length` bytes of `file`,
             from byte `offset` on, to the rank's part of tensor `name`, from its byte `place` on.
             Numbers are ints. The order is yours
    budget   each byte of the rank's parts is read once
             two reads that follow each other, in the file and in the part, are one read
    needed   tensors have up to 200 elements: clarity counts, speed does not
"""

from typing import Any

Part = tuple[Any, ...]
Read = tuple[str, str, int, int, int]


def reshard_plan(
    saved: dict[str, tuple[tuple[int, int], int, list[tuple[str, int, Part]]]],
    wanted: dict[str, Part],
) -> list[Read]:
    """Return the reads of one rank."""
    raise NotImplementedError("not attempted yet: your code replaces this line")

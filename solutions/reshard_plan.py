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
    ### BEGIN SOLUTION
    reads: list[Read] = []
    for name, part in wanted.items():
        (_, columns), itemsize, pieces = saved[name]
        held = [
            (first, length, file, offset + itemsize * there)
            for file, offset, piece in pieces
            for first, there, length in runs(piece, columns)
        ]
        for begin, here, length in runs(part, columns):
            at, end = begin, begin + length
            while at < end:  # who has the element `at`, and how many of those behind it?
                run = next(each for each in held if each[0] <= at < each[0] + each[1])
                first, num_held, file, offset = run
                stop = min(end, first + num_held)
                place, skipped = itemsize * (here + at - begin), itemsize * (at - first)
                add(reads, (name, file, offset + skipped, itemsize * (stop - at), place))
                at = stop
    return reads


def runs(part: Part, columns: int) -> list[tuple[int, int, int]]:
    """Elements of a part that are neighbours: the first, its number in the part, how many."""
    if part[0] == "range":
        _, start, stop = part
        return [(start, 0, stop - start)]
    _, (top, bottom), (left, right) = part
    width = right - left
    return [(row * columns + left, (row - top) * width, width) for row in range(top, bottom)]


def add(reads: list[Read], read: Read) -> None:
    """Add a read, or make the last one longer."""
    if reads:
        name, file, offset, length, place = reads[-1]
        if (name, file, offset + length, place + length) == (*read[:3], read[4]):
            read = (name, file, offset, length + read[3], place)
            reads.pop()
    reads.append(read)
    ### END SOLUTION

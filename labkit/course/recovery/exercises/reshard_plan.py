"""Grade reshard_plan: the reads are performed; what stands in the rank's part is the result."""

import itertools
from collections.abc import Iterator
from typing import Any

from labkit.grade import grader as g

Part = tuple[Any, ...]
Saved = dict[str, tuple[tuple[int, int], int, list[tuple[str, int, Part]]]]
HEADER = ["the header"] * 24
LAYOUTS = [
    *(("ranges", 2, "ranges", 3), ("ranges", 2, "stripes", 2), ("stripes", 3, "ranges", 2)),
    *(("bands", 2, "bands", 3), ("stripes", 2, "stripes", 3), ("stripes", 3, "bands", 2)),
    *(("bands", 3, "stripes", 2), ("replicas", 2, "stripes", 2), ("bands", 2, "bands", 2)),
]


def cut(how: str, rows: int, columns: int, n: int) -> list[Part]:
    """Return the parts of n ranks: ranges, boxes of whole rows or of whole columns, or copies of
    all."""
    size = {"bands": rows, "stripes": columns}.get(how, rows * columns)
    spans = itertools.pairwise(size * rank // n for rank in range(n + 1))
    parts: dict[str, Any] = {
        "ranges": lambda span: ("range", *span),
        "bands": lambda span: ("box", span, (0, columns)),
        "stripes": lambda span: ("box", (0, rows), span),
        "replicas": lambda span: ("range", 0, size),
    }
    return [parts[how](span) for span in spans]


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield each rank of each layout; two tensors in the same files, of other sizes of elements."""
    for before, num_files, after, num_ranks in LAYOUTS:
        saved: Saved = {}
        ends = [len(HEADER)] * num_files
        for name, itemsize in (("up", 4), ("down", 2)):
            shape = draw.rng.randint(4, 9), draw.rng.randint(5, 11)
            saved[name] = shape, itemsize, []
            for number, part in enumerate(cut(before, *shape, num_files)):
                saved[name][2].append((f"rank-{number}", ends[number], part))
                ends[number] += len(content(name, saved, part))
            draw.rng.shuffle(saved[name][2])
        for rank in range(num_ranks):
            mine = {name: cut(after, *saved[name][0], num_ranks)[rank] for name in saved}
            label = f"{before} of {num_files} ranks to {after} of {num_ranks}, rank {rank}"
            yield g.Case(label, saved, mine)
    pieces = [("rank-0", 24, ("range", 0, 4)), ("rank-0", 40, ("range", 4, 8))]
    yield g.Case("joined pieces", {"up": ((2, 4), 4, pieces)}, {"up": ("range", 2, 6)})
    yield g.Case("an empty part", saved, {"up": ("range", 7, 7), "down": ("box", (1, 2), (2, 4))})


def content(name: str, saved: Saved, part: Part) -> list[str]:
    """Return the bytes of a part, each by its name."""
    (_, columns), itemsize, _ = saved[name]
    rows, row = part[1:] if part[0] == "box" else ((0, 1), part[1:])
    numbers = [top * columns + left for top in range(*rows) for left in range(*row)]
    return [f"byte {i} of {name}'s element {number}" for number in numbers for i in range(itemsize)]


def right(saved: Saved, wanted: dict[str, Part]) -> dict[str, list[str]]:
    """Return the bytes of the rank's parts."""
    return {name: content(name, saved, part) for name, part in wanted.items()}


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, list[str]]:
    """Return the parts that the learner's reads fill.

    Bytes outside a file or a part are lost.
    """
    saved, wanted = args
    reads = [tuple(each) for each in watch.function(saved, wanted)]
    watch.note("reads", reads)
    files: dict[str, list[str]] = {}
    for name, (_, _, pieces) in saved.items():
        for file, offset, part in pieces:
            files.setdefault(file, [*HEADER])[offset:] = content(name, saved, part)
    found = {name: ["nothing"] * len(each) for name, each in right(saved, wanted).items()}
    for name, file, offset, length, place in reads:
        for i in range(length):
            if 0 <= place + i < len(found[name]) and 0 <= offset + i < len(files[file]):
                found[name][place + i] = files[file][offset + i]
    return found


def num_bytes(s: g.Observed) -> tuple[int, int]:
    """Return how many bytes are read, and how many the parts have."""
    return sum(read[3] for read in s.ranks[0].notes[0].value), sum(map(len, s.right[0].values()))


def is_split(s: g.Observed) -> bool:
    """Return whether a read goes on where another one ends."""
    reads = s.ranks[0].notes[0].value
    begins = {(name, file, offset, place) for name, file, offset, _, place in reads}
    return any((n, file, o + size, p + size) in begins for n, file, o, size, p in reads if size)


OFFSET, SKIPPED = "offset + itemsize * there)", "itemsize * (at - first)"
PLACE = "itemsize * (here + at - begin)"
MISTAKES = [
    g.Mistake(
        "counts in elements, not in bytes",
        "Offsets, lengths and places are bytes: each is a number of elements times itemsize.",
        [
            g.patch("        held = [", "        itemsize = 1\n        held = ["),
            g.patch(PLACE, "here + at - begin", "place + length) ==", "read[4]) =="),
        ],
        hint=3,
    ),
    g.Mistake(
        "counts from the begin of the whole tensor",
        "A file has a piece, whose first element is at `offset`, and the rank's memory has its "
        "part, from byte 0 on: subtract where the piece, or the part, begins in the tensor.",
        [g.patch(OFFSET, "offset)", SKIPPED, "itemsize * at"), g.patch(PLACE, "itemsize * at")],
        hint=2,
    ),
    g.Mistake(
        "reads at once what is not together",
        "One read is bytes that follow each other in one file, and in the part of one tensor. Rows "
        "of a box are neighbours in the whole tensor only where it has all columns.",
        [
            g.patch(" = right - left", ", bottom = (right - left) * (bottom - top), top + 1"),
            g.patch(" == (*read[:3], read[4])", "[2:3] == read[2:3]"),
        ],
    ),
    g.Mistake(
        "skips the whole tensor's columns in a box",
        "In a file and in memory, the next row of a box is right - left elements later.",
        g.patch(OFFSET, "offset + itemsize * (first - runs(piece, columns)[0][0]))"),
        hint=2,
    ),
    g.Mistake(
        "reads replicas twice",
        "Each piece that has the element gives the same bytes. Read it from one of them.",
        g.patch("return reads\n", "return reads * 2\n"),
        over_budget=lambda s: num_bytes(s)[0] > num_bytes(s)[1],
    ),
    g.Mistake(
        "makes two reads where one is enough",
        "Reads cost a request each. Where one goes on where the other ends, in the file and in the "
        "part, they are one: rows of a piece, and pieces that follow each other.",
        g.patch("    if reads:\n", "    if False:\n"),
        over_budget=is_split,
        hint=2,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    picture=lambda s: "\n".join(
        ["{} bytes are read; the parts have {}:".format(*num_bytes(s))]
        + [str(read) for read in s.ranks[0].notes[0].value[:8]]
    ),
    shown="ranges and boxes of any number of ranks load into any other, each byte read once",
)

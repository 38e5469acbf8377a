"""Grade reshard_plan: ranges and boxes, saved and loaded by other numbers of ranks; replicas.

The learner's reads are performed on files whose elements are all different. What stands in the
rank's part afterwards is the result.
"""

from collections.abc import Callable, Iterator
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch

Part = tuple[Any, ...]
Saved = dict[str, tuple[tuple[int, int], int, list[tuple[str, int, Part]]]]
Cut = Callable[[int, int, int], list[Part]]
HEADER, NOTHING = b"\xaa" * 24, 0xEE


def ranges(rows: int, columns: int, n: int) -> list[Part]:
    """ZeRO's parts."""
    ends = [rows * columns * rank // n for rank in range(n + 1)]
    return [("range", *pair) for pair in zip(ends, ends[1:], strict=False)]


def bands(rows: int, columns: int, n: int) -> list[Part]:
    """Tensor parallelism's, of rows."""
    ends = [rows * rank // n for rank in range(n + 1)]
    return [("box", pair, (0, columns)) for pair in zip(ends, ends[1:], strict=False)]


def stripes(rows: int, columns: int, n: int) -> list[Part]:
    """Tensor parallelism's, of columns."""
    return [("box", (0, rows), part[1]) for part in bands(columns, rows, n)]


def replicas(rows: int, columns: int, n: int) -> list[Part]:
    """Data parallelism's."""
    return [("range", 0, rows * columns)] * n


LAYOUTS: list[tuple[Cut, int, Cut, int]] = [
    *((ranges, 2, ranges, 3), (ranges, 2, stripes, 2), (stripes, 3, ranges, 2)),
    *((bands, 2, bands, 3), (stripes, 2, stripes, 3), (stripes, 3, bands, 2)),
    *((bands, 3, stripes, 2), (replicas, 2, stripes, 2), (ranges, 3, replicas, 1)),
]


def cases(draw: Draw) -> Iterator[Case]:
    """Each rank of each layout; two tensors in the same files, of other sizes of elements."""
    rng = draw.rng
    for cut, num_files, wanted, num_ranks in LAYOUTS:
        saved: Saved = {}
        ends = [len(HEADER)] * num_files
        for name, itemsize in (("up", 4), ("down", 2)):
            shape = rng.randint(4, 9), rng.randint(5, 11)
            pieces = []
            for number, part in enumerate(cut(*shape, num_files)):
                pieces.append((f"rank-{number}", ends[number], part))
                ends[number] += itemsize * len(elements(part, shape[1]))
            rng.shuffle(pieces)
            saved[name] = shape, itemsize, pieces
        label = f"{cut.__name__} of {num_files} ranks to {wanted.__name__} of {num_ranks}"
        for rank in range(num_ranks):
            mine = {name: wanted(*saved[name][0], num_ranks)[rank] for name in saved}
            yield Case(f"{label}, rank {rank}", saved, mine)
    yield Case("an empty part", saved, {"up": ("range", 7, 7), "down": ("box", (1, 2), (2, 4))})


def elements(part: Part, columns: int) -> list[int]:
    """The numbers of a part's elements in the whole tensor, in order."""
    if part[0] == "range":
        return list(range(part[1], part[2]))
    return [row * columns + column for row in range(*part[1]) for column in range(*part[2])]


def content(name: str, numbers: list[int], itemsize: int) -> bytes:
    """Bytes of elements: each is different."""
    first = 1000 if name == "up" else 9000
    return b"".join((first + number).to_bytes(itemsize, "little") for number in numbers)


def right(saved: Saved, wanted: dict[str, Part]) -> dict[str, list[int]]:
    """The bytes of the parts."""
    return {
        name: list(content(name, elements(part, saved[name][0][1]), saved[name][1]))
        for name, part in wanted.items()
    }


def performed(reads: Any, saved: Saved, wanted: dict[str, Part]) -> dict[str, list[int]]:
    """What the reads leave in the rank's parts. What lies outside of a file or a part is lost."""
    files: dict[str, bytearray] = {}
    for name, (shape, itemsize, pieces) in saved.items():
        for file, offset, part in pieces:
            data = files.setdefault(file, bytearray(HEADER))
            data[offset:] = content(name, elements(part, shape[1]), itemsize)
    found = {name: [NOTHING] * len(each) for name, each in right(saved, wanted).items()}
    for name, file, offset, length, place in reads:
        for i in range(length):
            if 0 <= place + i < len(found[name]) and 0 <= offset + i < len(files[file]):
                found[name][place + i] = files[file][offset + i]
    return found


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Perform the learner's reads."""
    reads = [tuple(each) for each in watch.function(*args)]
    watch.note("reads", reads)
    return performed(reads, *args)


def reads_of(s: Observed) -> list[Any]:
    """The learner's plan."""
    return [tuple(each) for each in s.ranks[0].notes[0].value]


def described(s: Observed) -> str:
    """The first byte that is not right; how much was read, where all are."""
    reads = reads_of(s)
    for name, expected in s.right[0].items():
        for at, (got, wanted) in enumerate(zip(s.y[name], expected, strict=True)):
            if got != wanted:
                its = [r for r in reads if r[0] == name and 0 <= at - r[4] < r[3]]
                what = f"it comes from the read {its[0]}" if its else "no read fills it"
                return f"byte {at} of {name} {s.args[1][name]} is not the saved one: {what}"
    return f"{len(reads)} reads of {sum(read[3] for read in reads)} bytes"


def is_over_bytes(s: Observed) -> bool:
    """Whether more is read than the parts have."""
    return sum(read[3] for read in reads_of(s)) > sum(map(len, s.right[0].values()))


def is_split(s: Observed) -> bool:
    """Whether a read goes on where another one ends."""
    reads = reads_of(s)
    begins = {(name, file, offset, place) for name, file, offset, _, place in reads}
    return any((n, file, o + size, p + size) in begins for n, file, o, size, p in reads if size)


def plan(saved: Saved, wanted: dict[str, Part], mistake: str) -> list[Any]:
    """Element by element, with one mistake."""
    reads: list[Any] = []
    for name, part in wanted.items():
        (_, columns), itemsize, pieces = saved[name]

        def numbered(each: Part, columns: int = columns) -> list[int]:
            numbers = elements(each, columns)
            if mistake == "box as range" and each[0] == "box" and numbers:
                numbers = list(range(numbers[0], numbers[0] + len(numbers)))
            return numbers

        for here, number in enumerate(numbered(part)):
            for file, offset, piece in pieces:
                numbers = numbered(piece)
                if number in numbers:
                    there = number if mistake == "global offset" else numbers.index(number)
                    place = number if mistake == "global place" else here
                    if "wide rows" in mistake:
                        there = number - numbers[0]
                    if mistake == "wide rows everywhere":
                        place = number - numbered(part)[0]
                    start = 0 if mistake == "no offset" else offset
                    size = 1 if mistake == "elements" else itemsize
                    read = name, file, start + size * there, itemsize, itemsize * place
                    reads.append(read if mistake != "elements" else (*read[:3], 1, place))
                    break
            if mistake == "first file":
                pieces = [each for each in pieces if each[0] == reads[-1][1]]
    return reads


def made(mistake: str) -> Callable[[Observed], bool]:
    """Predicate: the result is what this mistake gives."""
    return lambda s: s.is_answer([performed(plan(*s.args, mistake), *s.args)])


BOX = "[(row * columns + left, (row - top) * width, width) for row in range(top, bottom)]"
PLACE, SKIPPED = "itemsize * (here + at - begin)", "itemsize * (at - first)"
MISTAKES = [
    Mistake(
        "counts in elements, not in bytes",
        "Offsets, lengths and places are bytes: each is a number of elements times itemsize.",
        hint=3,
        seen=made("elements"),
        made_by=patch(
            *(
                f"place, skipped = {PLACE}, {SKIPPED}",
                "place, skipped = here + at - begin, at - first",
            ),
            *(
                "itemsize * (stop - at)",
                "stop - at",
                "offset + itemsize * there)",
                "offset + there)",
            ),
        ),
    ),
    Mistake(
        "forgets where a piece begins in its file",
        "A file has a header and several tensors. The piece's first element is at `offset`.",
        hint=3,
        seen=made("no offset"),
        made_by=patch("file, offset + itemsize * there)", "file, itemsize * there)"),
    ),
    Mistake(
        "counts in the whole tensor where it reads",
        "A file has a piece. Its first element is at `offset`, whatever its number in the whole "
        "tensor: subtract where the piece begins.",
        hint=2,
        seen=made("global offset"),
        made_by=patch(SKIPPED, "itemsize * at", "offset + itemsize * there)", "offset)"),
    ),
    Mistake(
        "counts in the whole tensor where it writes",
        "The rank's memory has its part only, from byte 0 on.",
        hint=2,
        seen=made("global place"),
        made_by=patch(PLACE, "itemsize * at"),
    ),
    Mistake(
        "takes a box for a range",
        "Rows of a box are neighbours in the whole tensor only where it has all columns. Elsewhere "
        "each row is a run of its own.",
        seen=made("box as range"),
        made_by=patch(BOX, "[(top * columns + left, 0, width * (bottom - top))]"),
    ),
    Mistake(
        "skips the whole tensor's columns in a box",
        "In a file and in memory the rows of a box follow each other: the next row is right - left "
        "elements later.",
        hint=2,
        seen=lambda s: made("wide rows")(s) or made("wide rows everywhere")(s),
        made_by=patch("(row - top) * width", "(row - top) * columns"),
    ),
    Mistake(
        "reads from one file only",
        "Where layouts differ, a part comes from several files: intersect it with every piece.",
        seen=made("first file"),
        made_by=patch(
            *("run = next(each for", "run = next((each for"),
            *(
                "each[0] + each[1])\n",
                "each[0] + each[1]), None)\n                if not run:\n"
                "                    at += 1\n                    continue\n",
            ),
            *("at = stop\n", f"at = stop\n{16 * ' '}held = [x for x in held if x[2] == file]\n"),
        ),
    ),
    Mistake(
        "reads replicas twice",
        "Each piece that has the element gives the same bytes. Read it from one of them.",
        outcome=Outcome.OVER_BUDGET,
        seen=is_over_bytes,
        made_by=patch(
            "for begin, here, length in runs(part, columns):",
            "twice = [(each, run) for each in (held, held[::-1]) for run in runs(part, columns)]\n"
            "        for held, (begin, here, length) in twice:",
            *("return reads\n", "return list(dict.fromkeys(reads))\n"),
        ),
    ),
    Mistake(
        "makes a read of every row",
        "Reads cost a request each. Where one goes on where the other ends, in the file and in the "
        "part, they are one.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: is_split(s) and not is_over_bytes(s),
        made_by=patch("    if reads:\n", "    if False:\n"),
    ),
]

GRADER = Questions(
    name="reshard_plan",
    cases=cases,
    right=right,
    call=call,
    describe=described,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    shown="ranges and boxes of any number of ranks load into any other, each byte read once",
)

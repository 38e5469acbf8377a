"""Drawings of what each rank holds: after a collective, and in each layout.

after a collective    a, b, c and d are ranks 0 to 3; c2 is c's chunk 2, abcd2 the sum of all
ZeRO, FSDP            "x" where a rank keeps this quarter
layouts               rows, columns, heads or tokens: "0-3", "0,1", "all"
meshes                coordinates

Cells are compared with those of the one right answer. A cell that means the same passes: "all" and
"0-5" of six rows, "dcba2" and "a2+b2+c2+d2".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from labkit.interview.draw.drawing import Cells, Drawing, Fault
from labkit.mesh import coordinates_at

N = 4
_LETTERS = "abcd"
Held = Callable[[int], list[str]]
"""Cells of a rank."""


def _compared(expected: Cells, whole: Sequence[int], cells: Cells) -> None:
    """Compare cell by cell. whole: by column, how many numbers "all" means; () where none does."""
    for rank, row in enumerate(expected):
        for column, wanted in enumerate(row):
            found, total = cells[rank][column], whole[column] if whole else 0
            if _meaning(found, total) == _meaning(wanted, total):
                continue
            if not found:
                raise Fault(rank, column, "this cell is empty, and the rank has something here")
            if not wanted:
                raise Fault(rank, column, f"{found}, and the rank has nothing here")
            raise Fault(rank, column, f"{found} is not what this rank has here")


def _meaning(cell: str, total: int) -> object:
    """Return what a cell means: the numbers of a range or a list, the letters of a sum, words."""
    text = re.sub("[–—]|\\.\\.", "-", cell.lower()).strip()
    if text == "all" and total:
        return set(range(total))
    if re.fullmatch(r"\d{1,3}(-\d{1,3})?([,\s]+\d{1,3}(-\d{1,3})?)*", text):
        spans = [word.partition("-") for word in re.split(r"[,\s]+", text)]
        return {n for low, _, high in spans for n in range(int(low), int(high or low) + 1)}
    terms = [re.fullmatch(rf"([{_LETTERS}]+)(\d)", word) for word in re.split(r"[+\s]+", text)]
    if len({term and term[2] for term in terms}) == 1 and (first := terms[0]):
        return sorted("".join(term[1] for term in terms if term)), first[2]
    return text


def _drawing(
    name: str,
    title: str,
    topic: str,
    prompt: str,
    hint: str,
    columns: Sequence[str],
    held: Held,
    whole: Sequence[int] = (),
    num_ranks: int = N,
) -> Drawing:
    rows, answer = [f"rank {rank}" for rank in range(num_ranks)], [*map(held, range(num_ranks))]
    replay = partial(_compared, answer, whole)
    return Drawing(name, title, topic, prompt, hint, tuple(rows), tuple(columns), answer, replay)


_SUMS = [f"{_LETTERS}{chunk}" for chunk in range(N)]
AFTER: dict[str, tuple[Held, str]] = {
    "all_reduce": (lambda r: _SUMS, "Every rank has the sum of every chunk."),
    "reduce": (
        lambda r: _SUMS if r == 0 else [""] * N,
        "Only the root, rank 0, has the sums.",
    ),
    "reduce_scatter": (
        lambda r: [_SUMS[r], "", "", ""],
        "Rank r has the sum of chunk r, and nothing else.",
    ),
    "all_gather": (
        lambda r: [f"{letter}0" for letter in _LETTERS],
        "Every rank has each rank's chunk, in the order of the ranks.",
    ),
    "all_to_all": (
        lambda r: [f"{letter}{r}" for letter in _LETTERS],
        "Rank r gets chunk r of each rank, in the order of the ranks: a transposition.",
    ),
    "broadcast": (lambda r: [f"a{chunk}" for chunk in range(N)], "Every rank has what rank 0 had."),
    "scatter": (lambda r: [f"a{r}", "", "", ""], "Rank r has chunk r of rank 0."),
    "gather": (
        lambda r: [f"{letter}0" for letter in _LETTERS] if r == 0 else [""] * N,
        "Only the root, rank 0, has each rank's chunk.",
    ),
}
"""By collective: what a rank's result holds, slot by slot, and the rule. The root is rank 0."""
_ONE_CHUNK = ("all_gather", "gather")


def _after(name: str) -> Drawing:
    held, rule = AFTER[name]
    begins = (
        "Rank 0 begins with one chunk, a0, rank 1 with b0, rank 2 with c0, rank 3 with d0."
        if name in _ONE_CHUNK
        else "Rank 0 begins with chunks a0 a1 a2 a3, rank 1 with b0 to b3, and so on."
    )
    return _drawing(
        f"after-{name.replace('_', '-')}",
        f"Each rank's result of {name}",
        "co-6",
        f"{begins} Fill in the result of {name} on each rank, from the first slot on; abcd2 is the "
        "sum of all chunks 2. Leave a slot empty in which a rank has no result. A root is rank 0.",
        rule,
        [f"slot {slot}" for slot in range(N)],
        held,
    )


def _zero(stage: int) -> Drawing:
    """After backward, before the optimizer's step: gradients are reduced."""
    kinds = ("parameters", "gradients", "states")
    is_sharded = {"parameters": stage >= 3, "gradients": stage >= 2, "states": stage >= 1}

    def held(rank: int) -> list[str]:
        return [
            "x" if quarter == rank or not is_sharded[kind] else ""
            for kind in kinds
            for quarter in range(N)
        ]

    sharded = [kind for kind in kinds if is_sharded[kind]]
    return _drawing(
        f"zero-{stage}",
        f"Each rank's quarters under ZeRO-{stage}",
        "ze-1",
        "Parameters, gradients and optimizer states are cut into quarters, quarter r for rank r. "
        "Write x where a rank has memory for a quarter just before the optimizer's step.",
        f"Sharded: {', '.join(sharded)}. Of these each rank has memory for its own quarter, and of "
        "the other kinds for all quarters.",
        [f"{short} {quarter}" for short in ("param.", "grad.", "state") for quarter in range(N)],
        held,
    )


def _ranges(total: int, parts: int) -> list[str]:
    """Cut 0 to total - 1 into ranges as even as torch.tensor_split's: "0-2"."""
    sizes = [total // parts + (part < total % parts) for part in range(parts)]
    starts = [sum(sizes[:part]) for part in range(parts)]
    return [
        f"{start}-{start + size - 1}" if size > 1 else f"{start}"
        for start, size in zip(starts, sizes, strict=True)
    ]


def _matrices() -> list[Drawing]:
    inner, heads, words = _ranges(12, N), _ranges(8, N), _ranges(10, N)
    return [
        _drawing(
            "column-row",
            "An MLP over 4 ranks: column, then row",
            "tp-3",
            "y = gelu(x A) B, with x of 6 features, A (6, 12) and B (12, 6), split as Megatron "
            "does. Which rows and columns of A and B has each rank? Write 0-2 for the first "
            "three, all for all of them.",
            "A is cut by columns, so that gelu acts on whole features, and B by the rows that "
            "belong to them: one all-reduce, at the end.",
            ("A, rows", "A, columns", "B, rows", "B, columns"),
            lambda r: ["all", inner[r], inner[r], "all"],
            (6, 12, 12, 6),
        ),
        _drawing(
            "heads",
            "Grouped queries over 4 ranks",
            "tp-4",
            "8 query heads and 2 heads of keys and values, over 4 ranks. Which heads has each "
            "rank? Query heads 0 to 3 read key head 0.",
            "A rank needs the keys of its own query heads. With fewer key heads than ranks each "
            "is copied to several ranks.",
            ("queries", "keys"),
            lambda r: [heads[r], str(r // 2)],
            (8, 2),
        ),
        _drawing(
            "vocabulary",
            "A vocabulary of 10 over 4 ranks",
            "tp-5",
            "The head's 10 columns are cut as torch.tensor_split cuts them. Which columns has "
            "each rank, and for which of the 3 tokens, 0 to 2, does it compute logits?",
            "The first 10 mod 4 ranks have one column more. Each rank computes its columns' "
            "logits for all tokens.",
            ("columns", "tokens"),
            lambda r: [words[r], "0-2"],
            (10, 3),
        ),
    ]


def _places() -> list[Drawing]:
    tokens, sizes = _ranges(8, N), {"dp": 2, "pp": 2, "tp": 2}
    return [
        _drawing(
            "sequence",
            "Sequence parallelism: where tokens are whole",
            "sp-1",
            "8 tokens, tensor and sequence parallelism over 4 ranks. Which tokens has each rank "
            "in the norm, in the attention's products, in the MLP's products and in the residual "
            "sum? Write 0-2 for the first three, all for all of them.",
            "Between the tensor-parallel regions tokens are cut. In a region each rank has all "
            "tokens, and its own heads or features.",
            ("norm", "attention", "MLP", "residual"),
            lambda r: [tokens[r], "all", "all", tokens[r]],
            (8, 8, 8, 8),
        ),
        _drawing(
            "mesh-2x2x2",
            "Ranks in a mesh of dp 2, pp 2, tp 2",
            "hy-1",
            "8 ranks, tensor parallelism innermost, then the pipeline, data parallelism "
            "outermost. Write each rank's coordinates.",
            "rank = (dp x 2 + pp) x 2 + tp: neighbours in tp have neighbouring numbers.",
            tuple(sizes),
            lambda r: [*map(str, coordinates_at(r, sizes).values())],
            num_ranks=8,
        ),
    ]


def drawings() -> list[Drawing]:
    """Return the drawings of holdings."""
    return [*map(_after, AFTER), *map(_zero, (1, 2, 3)), *_matrices(), *_places()]

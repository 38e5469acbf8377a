"""Drawings of what each rank holds: after a collective, and in each layout.

after a collective    a, b, c and d are ranks 0 to 3; c2 is c's piece 2, abcd2 the sum of all
ZeRO, FSDP            "x" where a rank keeps this quarter
tensor parallel       the rows and columns of each matrix: "0-3", "all"
meshes                coordinates
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from labkit.interview.draw.drawing import Cells, Drawing, Fault
from labkit.mesh import coordinates_at

N = 4
_LETTERS = "abcd"


def _compared(expected: Cells, why: str, cells: Cells) -> None:
    """Compare cell by cell; letters and pieces of a sum may stand in any order."""
    for rank, row in enumerate(expected):
        for column, wanted in enumerate(row):
            if _normal(cells[rank][column]) != _normal(wanted):
                found = cells[rank][column] or "nothing"
                raise Fault(rank, column, f"{found} is wrong here. {why}")


def _normal(cell: str) -> tuple[str, ...]:
    """Return a cell's words: a sum's letters sorted, `0-0` as `0`."""
    words = cell.lower().replace("–", "-").replace("..", "-").split()
    words = [re.sub(r"^(\d+)-\1$", r"\1", word) for word in words]
    return tuple(
        sorted("".join(sorted(w.rstrip("0123456789"))) + w.lstrip(_LETTERS) for w in words)
        if all(re.fullmatch(rf"[{_LETTERS}]+\d", word) for word in words)
        else words
    )


def _drawing(
    name: str,
    title: str,
    topic: str,
    prompt: str,
    hint: str,
    columns: Sequence[str],
    answer: Cells,
) -> Drawing:
    rows = [f"rank {rank}" for rank in range(len(answer))]
    replay = partial(_compared, answer, hint)
    return Drawing(name, title, topic, prompt, hint, tuple(rows), tuple(columns), answer, replay)


_SUMS = [f"{_LETTERS}{piece}" for piece in range(N)]
AFTER: dict[str, tuple[Callable[[int], list[str]], str]] = {
    "all_reduce": (lambda r: _SUMS, "Every rank has the sum of every piece."),
    "reduce": (
        lambda r: _SUMS if r == 0 else [""] * N,
        "Only the root, rank 0, has the sums; leave the others empty.",
    ),
    "reduce_scatter": (
        lambda r: [_SUMS[r], "", "", ""],
        "Rank r has the sum of piece r, and nothing else.",
    ),
    "all_gather": (
        lambda r: [f"{letter}0" for letter in _LETTERS],
        "Every rank has everybody's piece, in the order of the ranks.",
    ),
    "all_to_all": (
        lambda r: [f"{letter}{r}" for letter in _LETTERS],
        "Rank r gets piece r of everybody, in the order of the ranks: a transposition.",
    ),
    "broadcast": (lambda r: [f"a{piece}" for piece in range(N)], "Every rank has what rank 0 had."),
    "scatter": (lambda r: [f"a{r}", "", "", ""], "Rank r has piece r of rank 0."),
    "gather": (
        lambda r: [f"{letter}0" for letter in _LETTERS] if r == 0 else [""] * N,
        "The root, rank 0, has everybody's piece; leave the others empty.",
    ),
}
"""By collective: what a rank's result holds, slot by slot, and the rule. The root is rank 0."""
_ONE_PIECE = ("all_gather", "gather")


def _after(name: str) -> Drawing:
    held, rule = AFTER[name]
    begins = (
        "Rank 0 begins with one piece, a0, rank 1 with b0, rank 2 with c0, rank 3 with d0."
        if name in _ONE_PIECE
        else "Rank 0 begins with pieces a0 a1 a2 a3, rank 1 with b0 to b3, and so on."
    )
    return _drawing(
        f"after-{name.replace('_', '-')}",
        f"Each rank's result of {name}",
        "co-6",
        f"{begins} Fill in the result of {name} on each rank, from the first slot on; abcd2 is the "
        "sum of all pieces 2.",
        rule,
        [f"slot {slot}" for slot in range(N)],
        [held(rank) for rank in range(N)],
    )


def _zero(stage: int) -> Drawing:
    """Between two steps' backward and update: gradients are reduced."""
    kinds = ("parameters", "gradients", "states")
    is_sharded = {"parameters": stage >= 3, "gradients": stage >= 2, "states": stage >= 1}
    answer = [
        [
            "x" if quarter == rank or not is_sharded[kind] else ""
            for kind in kinds
            for quarter in range(N)
        ]
        for rank in range(N)
    ]
    sharded = [kind for kind in kinds if is_sharded[kind]]
    return _drawing(
        f"zero-{stage}",
        f"Each rank's quarters under ZeRO-{stage}",
        "ze-1",
        "Parameters, reduced gradients and optimizer states are cut into quarters, quarter r for "
        "rank r. Write x where a rank keeps a quarter just before the optimizer's step.",
        f"Sharded are {', '.join(sharded)}; of these each rank keeps its own quarter. The rest is "
        "whole on every rank.",
        [f"{kind[:5]}. {quarter}" for kind in kinds for quarter in range(N)],
        answer,
    )


def _ranges(total: int, parts: int) -> list[str]:
    """Cut 0 to total - 1 into ranges as even as torch.tensor_split's: "0-2"."""
    sizes = [total // parts + (part < total % parts) for part in range(parts)]
    starts = [sum(sizes[:part]) for part in range(parts)]
    return [
        f"{start}-{start + size - 1}" if size > 1 else f"{start}"
        for start, size in zip(starts, sizes, strict=True)
    ]


def _mlp() -> Drawing:
    own = _ranges(12, N)
    return _drawing(
        "column-row",
        "An MLP over 4 ranks: column, then row",
        "tp-3",
        "y = gelu(x A) B, with x of 6 features, A (6, 12) and B (12, 6), split as Megatron does. "
        "Which rows and columns of A and B has each rank? Write 0-2 for the first three, all for "
        "all of them.",
        "A is cut by columns, so that gelu acts on whole features, and B by the rows that belong "
        "to them: one all-reduce, at the end.",
        ("A, rows", "A, columns", "B, rows", "B, columns"),
        [["all", own[r], own[r], "all"] for r in range(N)],
    )


def _heads() -> Drawing:
    return _drawing(
        "heads",
        "Grouped queries over 4 ranks",
        "tp-4",
        "8 query heads and 2 heads of keys and values, over 4 ranks. Which heads has each rank? "
        "Query heads 0 to 3 read key head 0.",
        "A rank needs the keys of its own query heads. With fewer key heads than ranks each is "
        "copied to several ranks.",
        ("queries", "keys"),
        [[_ranges(8, N)[r], str(r // 2)] for r in range(N)],
    )


def _vocabulary() -> Drawing:
    own = _ranges(10, N)
    return _drawing(
        "vocabulary",
        "A vocabulary of 10 over 4 ranks",
        "tp-5",
        "The head's 10 columns are cut as torch.tensor_split cuts them. Which columns has each "
        "rank, and which logits does it compute? It has 3 tokens, 0 to 2.",
        "The first 10 mod 4 ranks have one column more. Each rank computes its columns' logits for "
        "all tokens.",
        ("columns", "tokens"),
        [[own[r], "0-2"] for r in range(N)],
    )


def _sequence() -> Drawing:
    own = _ranges(8, N)
    return _drawing(
        "sequence",
        "Sequence parallelism: where tokens are whole",
        "sp-1",
        "8 tokens, tensor and sequence parallelism over 4 ranks. Which tokens has each rank in the "
        "norm, in the attention's products, in the MLP's products and in the residual sum?",
        "Between the tensor-parallel regions tokens are cut. In a region each rank has all tokens, "
        "and its own heads or features.",
        ("norm", "attention", "MLP", "residual"),
        [[own[r], "0-7", "0-7", own[r]] for r in range(N)],
    )


def _mesh() -> Drawing:
    places = [coordinates_at(rank, {"dp": 2, "pp": 2, "tp": 2}) for rank in range(8)]
    return _drawing(
        "mesh-2x2x2",
        "Ranks in a mesh of dp 2, pp 2, tp 2",
        "hy-1",
        "8 ranks, tensor parallelism innermost, then the pipeline, data parallelism outermost. "
        "Write each rank's coordinates.",
        "rank = (dp x 2 + pp) x 2 + tp: neighbours in tp have neighbouring numbers.",
        ("dp", "pp", "tp"),
        [[str(place[axis]) for axis in ("dp", "pp", "tp")] for place in places],
    )


def drawings() -> list[Drawing]:
    """Return the drawings of holdings."""
    return [
        *map(_after, AFTER),
        *map(_zero, (1, 2, 3)),
        _mlp(),
        _heads(),
        _vocabulary(),
        _sequence(),
        _mesh(),
    ]

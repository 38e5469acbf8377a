"""Grade activation_bytes: drawn layers, with every way to keep less, alone and with the others."""

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch


def cases(draw: Draw) -> list[Case]:
    """All ways to keep less, simple ones first, each on two layers of other sizes."""
    parallel = [(1, False), (draw.rng.choice((2, 4)), False), (draw.rng.choice((2, 4, 8)), True)]
    ways = itertools.product(parallel, (False, True), ("none", "selective", "full"))
    return [
        *(layer(draw, t, split, recompute, flash) for (t, split), flash, recompute in 2 * [*ways]),
        layer(draw, 1, True, "none", False),  # sequence parallelism of one rank
    ]


def layer(draw: Draw, t: int, sequence_parallel: bool, recompute: str, flash: bool) -> Case:
    """A layer of some size that t divides."""
    rng = draw.rng
    a, s, b = t * rng.randrange(2, 9), t * rng.randrange(100, 1000), rng.randrange(2, 9)
    h = a * rng.choice((64, 80, 96, 128))
    label = f"{s=}, {b=}, {h=}, {a=}, {t=}, {sequence_parallel=}, {recompute=}, {flash=}"
    return Case(label, s, b, h, a, t, sequence_parallel, recompute, flash)


def right(*layer: Any) -> float:
    """By the calculator, for a model of one layer."""
    s, b, h, a, t, split, recompute, flash = layer
    config = calc.ModelConfig(layers=1, hidden=h, heads=a, vocab=1, context=s)
    return float(calc.activation_bytes(config, b, t, split, recompute=recompute, flash=flash))


RIGHT = {
    # Bytes per number.
    "starred": 10,
    "gathered": 0,
    "inside": 24,
    "score": 5,
    "layer_input": 2,
    # Scores, and float32 bytes of flash attention, per token and sequence.
    "row": lambda a, s, b: a * s,
    "stats": lambda a, t: 4 * a,
    # Ranks that share a tensor.
    "starred_by": "sequence",
    "inside_by": "tensor",
    "scores_by": "tensor",
    "input_by": "sequence",
}


def kept(**others: Any) -> Callable[..., float]:
    """The formula with RIGHT, but for `others`."""
    its = types.SimpleNamespace(**{**RIGHT, **others})

    def formula(*layer: Any) -> float:
        s, b, h, a, t, split, recompute, flash = layer
        along = t if split else 1
        ranks = {"sequence": along, "tensor": t, "none": 1, "both": along * t}
        if recompute == "full":
            return its.layer_input * s * b * h / ranks[its.input_by]
        scores = its.score * its.row(a, s, b) * (recompute == "none")
        if flash:
            scores = its.stats(a, t)
        per_number = (its.starred - its.gathered) / ranks[its.starred_by] + its.gathered
        per_number += its.inside / ranks[its.inside_by]
        return s * b * (h * per_number + scores / ranks[its.scores_by])

    return formula


def where(recompute: str, formula: Any, flash: Sequence[bool] = (False, True)) -> Any:
    """`formula` for these layers, and right for all others."""
    return lambda *of: formula(*of) if of[6] == recompute and of[7] in flash else right(*of)


MASKS = (
    (2, 1),
    (2, 0),
    (0, 1),
    (-2, -1),
    (-2, 0),
    (0, -1),
    (1, 0),
    (-1, 0),
)  # bytes more than is right
SELECTIVE = 'elif recompute == "selective":\n        scores = 0'
SCORES, FLASH = "scores = (2 + 1 + 2) * a * s * s * b", "scores = 4 * a * s * b"
STARRED = "starred = 2 * (2 + 2 + 1)"
RETURN, FULL = "return starred / split + (inside + scores) / t", "return 2 * s * b * h / split"

MISTAKES = [
    Mistake(
        "forgets the scores",
        "Attention keeps its (s, s) tensors, 5 a s s b bytes. From s = 7h/a on these are more than "
        "half of all bytes.",
        formula=kept(score=0),
        made_by=patch(SCORES, "scores = 0"),
    ),
    Mistake(
        "gives the scores another shape",
        "Every head of every sequence has its own (s, s) matrix: each token attends to each token. "
        "A causal mask sets half of the scores to zero, and the matrix stores these zeros too.",
        formula=[
            kept(row=lambda a, s, b: s, stats=lambda a, t: 4),
            *(
                kept(row=row)
                for row in (
                    lambda a, s, b: s,
                    lambda a, s, b: a,
                    lambda a, s, b: a * s / 2,
                    lambda a, s, b: a * s / b,
                )
            ),
        ],
        made_by=patch(SCORES, SCORES.replace("a * ", "")),
    ),
    Mistake(
        "divides tensors with a star by t without sequence parallelism",
        "Tensor parallelism splits only what is inside attention and MLP. Norms, dropouts at the "
        "end and inputs of the first linear layers are whole on every rank.",
        formula=[
            kept(starred_by="tensor", input_by="tensor"),
            kept(starred_by="tensor"),
            kept(input_by="tensor"),
        ],
        made_by=patch("split = t if sequence_parallel else 1", "split = t"),
    ),
    Mistake(
        "keeps tensors with a star whole with sequence parallelism",
        "Sequence parallelism splits the tensors with a star along s, also the layer's input. Each "
        "rank keeps 1/t of them.",
        formula=[kept(starred_by="none", input_by="none"), kept(input_by="none")],
        made_by=patch("split = t if sequence_parallel else 1", "split = 1"),
    ),
    Mistake(
        "keeps gathered inputs whole with sequence parallelism",
        "The two linear layers gather their input to use it, but keep only their own 1/t of it. "
        "Backward gathers it again.",
        formula=kept(gathered=4),
        made_by=patch(RETURN, RETURN + " + 4 * s * b * h * (1 - 1 / split)"),
    ),
    Mistake(
        "does not divide by t",
        "Each rank has a / t of the heads and 1/t of the MLP's inner features. It keeps the scores "
        "and the tensors of these only.",
        formula=[
            kept(scores_by="none"),
            kept(inside_by="none"),
            kept(starred=26, inside=8, gathered=16),
            kept(inside_by="none", scores_by="none"),
        ],
        made_by=patch("(inside + scores) / t", "inside / t + scores"),
    ),
    Mistake(
        "divides by t twice with sequence parallelism",
        "Inside attention and MLP each rank has all tokens, of its own heads and features. These "
        "tensors are not split along s as well.",
        formula=[
            kept(inside_by="both"),
            kept(scores_by="both"),
            kept(inside_by="both", scores_by="both"),
        ],
        made_by=patch("(inside + scores) / t", "(inside / split + scores) / t"),
    ),
    Mistake(
        "miscounts the dropout masks",
        "A mask takes one byte per number, after attention, after the MLP and for every score. It "
        "makes 34 and 5. Without masks it would be 32 and 4, with 2-byte masks 36 and 6.",
        hint=3,
        formula=[kept(starred=10 + more, score=5 + score) for more, score in MASKS],
        made_by=patch(STARRED, "starred = 2 * (2 + 2 + 2)", "2 + 1 + 2) * a", "2 + 2 + 2) * a"),
    ),
    Mistake(
        "leaves out a tensor or counts one twice",
        "Write one line per tensor: 10 bytes per number with a star, and 8 in attention and 16 in "
        "the MLP without one. That is 34 s b h together, and 5 for each score.",
        hint=2,
        formula=[
            kept(starred=10 + starred, inside=24 + inside)
            for starred in (-2, 0, 2)
            for inside in (-16, -12, -8, -6, -4, -2, 0, 2, 4, 8)
        ]
        + [kept(score=score) for score in (1, 2, 3)],
        made_by=patch("(3 * 2 + 2)", "(2 * 2 + 2)"),
    ),
    Mistake(
        "counts four bytes per number",
        "Activations are in 16 bits here. Only flash attention's numbers are float32.",
        hint=3,
        formula=[
            kept(starred=starred, inside=48, score=score, layer_input=4)
            for starred, score in ((18, 9), (20, 10))
        ],
        made_by=patch(
            FULL,
            "return 4 * s * b * h / split",
            STARRED,
            "starred = 2 * (4 + 4 + 1)",
            "(3 * 2 + 2) * s * b * h + (2 + 2)",
            "(3 * 4 + 4) * s * b * h + (4 + 4)",
            "(2 + 1 + 2) * a",
            "(4 + 1 + 4) * a",
        ),
    ),
    Mistake(
        "takes selective recomputation for full",
        "Selective recomputation drops the (s, s) tensors. The other 34 bytes per number stay.",
        formula=where("selective", lambda *of: right(*of[:6], "full", of[7])),
        made_by=patch('recompute == "full"', 'recompute != "none"'),
    ),
    Mistake(
        "drops all of attention with selective recomputation",
        "Selective recomputation starts from query, key and value, so they stay. The inputs of the "
        "two projections stay too.",
        formula=[
            where(
                "selective",
                kept(starred=starred, inside=inside, stats=lambda a, t, k=k: k * a),
                flash,
            )
            for starred, inside in ((5, 16), (7, 16), (10, 16), (10, 18))
            for k, flash in ((0, (False, True)), (4, (False, True)), (4, (False,)))
        ],
        made_by=patch(SELECTIVE, SELECTIVE + "\n        inside -= 8 * s * b * h"),
    ),
    Mistake(
        "keeps something else with full recomputation",
        "Only the layer's input is kept, s b h numbers of 2 bytes. Forward starts again from it. "
        "The layer's output is the input of the next layer and counts there.",
        hint=3,
        formula=[
            kept(layer_input=0),
            kept(layer_input=4),
            *(
                where("full", lambda *of, other=other: right(*of[:6], other, of[7]), flash)
                for other in ("none", "selective")
                for flash in ([True], [False], [True, False])
            ),
        ],
        made_by=patch(FULL, "return 0"),
    ),
    Mistake(
        "miscounts what flash attention keeps",
        "Backward computes the scores again. It needs one float32 per token and head, so 4 bytes, "
        "for the a / t heads of the rank. This holds with recompute='selective' too.",
        hint=3,
        formula=[
            *(kept(stats=lambda a, t, k=k: k * a) for k in (0, 1, 2, 8)),
            kept(stats=lambda a, t: 4),
            kept(stats=lambda a, t: 4 * a * t),
            where("selective", kept(stats=lambda a, t: 0), [True]),
            lambda *of: right(*of[:7], False),
        ],
        made_by=patch(FLASH, "scores = 0"),
    ),
]

GRADER = Questions(
    name="activation_bytes",
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you count 34 s b h + 5 a s s b, and what tensor parallelism, sequence parallelism, "
    "recomputation and flash attention each take away, alone and together",
)

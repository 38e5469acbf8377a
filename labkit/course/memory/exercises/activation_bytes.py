"""Grade activation_bytes: drawn layers, with every way to keep less, alone and with the others."""

import itertools
from typing import Any

from labkit import calc
from labkit.grade import grader as g


def cases(draw: g.Draw) -> list[g.Case]:
    """Return all ways to keep less, alone and with the others, on layers of any size that t
    divides."""
    rng = draw.rng
    parallel = [(1, False), (1, True), (rng.choice((2, 4)), False), (rng.choice((2, 4, 8)), True)]
    found = []
    for (t, sequence_parallel), flash, recompute in itertools.product(
        parallel, (False, True), ("none", "selective", "full")
    ):
        a, s, b = t * rng.randrange(2, 9), t * rng.randrange(100, 1000), rng.randrange(2, 9)
        h = a * rng.choice((64, 80, 96, 128))
        label = f"{s=}, {b=}, {h=}, {a=}, {t=}, {sequence_parallel=}, {recompute=}, {flash=}"
        found.append(g.Case(label, s, b, h, a, t, sequence_parallel, recompute, flash))
    return found


def right(
    s: int, b: int, h: int, a: int, t: int, split: bool, recompute: Any, flash: bool
) -> float:
    """By the calculator, for a model of one layer."""
    config = calc.ModelConfig(layers=1, hidden=h, heads=a, vocab=1, context=s)
    return float(calc.activation_bytes(config, b, t, split, recompute=recompute, flash=flash))


STARRED, SCORES = "2 * (2 + 2 + 1)", "(2 + 1 + 2)"
SPLIT = "split = t if sequence_parallel else 1"
RETURN = "return starred / split + (inside + scores) / t"
MISTAKES = [
    g.Mistake(
        "miscounts the scores",
        "Every head of every sequence has its own (s, s) matrix: each token attends to each token. "
        "Three such tensors take 5 a s s b bytes, from s = 7h/a on more than all others. The zeros "
        "of a causal mask are stored too.",
        g.patches(f"{SCORES} * a * s * s * b", "5 * s * s * b", "5 * a * s * s * b / 2"),
    ),
    g.Mistake(
        "divides tensors with a star by t without sequence parallelism",
        "Tensor parallelism splits only what is inside attention and MLP. Norms, dropouts at the "
        "end and inputs of the first linear layers are whole on every rank.",
        [
            g.patch(SPLIT, "split = t"),
            g.patch(RETURN, "return (starred + inside + scores) / t"),
        ],
    ),
    g.Mistake(
        "keeps tensors with a star whole with sequence parallelism",
        "Sequence parallelism splits the tensors with a star along s, also the layer's input: each "
        "rank keeps 1/t of them. The two linear layers gather their input to use it, but keep only "
        "their own 1/t, and backward gathers it again.",
        [
            g.patch(SPLIT, "split = 1"),
            g.patch("return 2 * s * b * h / split", "return 2 * s * b * h"),
            g.patch(RETURN, f"{RETURN} + 4 * s * b * h * (1 - 1 / split)"),
        ],
    ),
    g.Mistake(
        "does not divide something by t, or divides it twice",
        "A rank has a / t of the heads and 1/t of the MLP's inner features, with all tokens. So "
        "tensors without a star and scores are divided by t, and not along s as well.",
        g.patches(
            RETURN,
            "return starred / split + inside / t + scores",
            "return starred / split + inside + scores",
            "return (starred + (inside + scores) / t) / split",
        ),
    ),
    g.Mistake(
        "leaves out a tensor or counts one twice",
        "Write one line per tensor, with 2 bytes per number and 1 in a mask: 10 with a star, 8 in "
        "attention and 16 in the MLP make 34 s b h, and each score takes 5. Without masks it would "
        "be 32 and 4, with 2-byte masks 36 and 6.",
        [
            g.patch(STARRED, "8", SCORES, "4"),
            g.patch(STARRED, "12", SCORES, "6"),
            *g.patches(STARRED, "8", "12"),
            *g.patches("(3 * 2 + 2)", "2", "4", "6"),
            *g.patches(SCORES, "4", "6"),
        ],
        hint=2,
    ),
    g.Mistake(
        "drops more than the scores with selective recomputation",
        "Selective recomputation drops the (s, s) tensors only. It starts again from query, key "
        "and value, so these stay, and the other 34 bytes per number stay too.",
        [
            g.patch('recompute == "full"', 'recompute != "none"'),
            *g.patches(
                RETURN,
                f"{RETURN} - 6 * s * b * h / t * (recompute == 'selective')",
                f"{RETURN} - 8 * s * b * h / t * (recompute == 'selective')",
            ),
        ],
    ),
    g.Mistake(
        "miscounts what flash attention keeps",
        "Backward computes the scores again. It needs one float32 per token and head, so 4 bytes, "
        "for the a / t heads of the rank. This holds with recompute='selective' too.",
        [
            *g.patches("scores = 4 * a * s * b", "scores = 0", "scores = 2 * a * s * b"),
            g.patch("if flash:", 'if flash and recompute == "none":'),
        ],
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you count 34 s b h + 5 a s s b, and what tensor parallelism, sequence parallelism, "
    "recomputation and flash attention each take away, alone and together",
)

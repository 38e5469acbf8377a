"""Grade estimate_mfu: drawn models and logs, against the calculator."""

import itertools
from collections.abc import Iterator
from typing import Any

from labkit import calc
from labkit.grade import grader as g

FUNCTIONS = ("flops_per_token", "mfu", "hfu")
# (gated, tied, query heads per key head, heads * head_dim / hidden)
FORMS = [
    (False, False, 1, 1),
    (True, False, 1, 1),
    (True, False, 4, 1),
    (False, True, 8, 1),
    (True, True, 2, 1),
    (True, False, 8, 2),
    (False, True, 1, 2),
]


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield each kind of log with some model, for each function."""
    kinds = itertools.product(("none", "full", "selective"), ("job", "device"), (False, True))
    models = itertools.cycle([model_of(draw, *form) for form in FORMS])
    pairs = [(model, run_of(model, draw, *kind)) for model, kind in zip(models, kinds)]
    for function, (model, run) in itertools.product(FUNCTIONS, pairs):
        asked = run["sequence"] if function == "flops_per_token" else run
        yield g.Case(f"{model}; {asked}", model, asked, function=function, known=function)


def model_of(draw: g.Draw, gated: bool, tied: bool, share: int, width: int) -> dict[str, Any]:
    """Return a model of a form."""
    rng = draw.rng
    heads = 8 * rng.randrange(2, 9)
    return {
        "layers": rng.randrange(8, 97),
        "hidden": 128 * heads,
        "heads": heads,
        "kv_heads": heads // share,
        "head_dim": 128 * width,
        "ffn": 32 * heads * rng.choice((11, 14, 20)),
        "gated": gated,
        "tied": tied,
        "vocab": rng.choice((32_000, 50_304, 128_256, 256_000)),
        "context": rng.choice((8_192, 16_384, 65_536)),
    }


def run_of(
    model: dict[str, Any], draw: g.Draw, recompute: str, logged_by: str, sparsity: bool
) -> dict[str, Any]:
    """Return a run that uses 20 to 50% of its devices."""
    rng = draw.rng
    sequence, devices = model["context"] // rng.choice((2, 4)), rng.randrange(3, 129)
    dense = rng.choice((125e12, 312e12, 989.5e12, 2250e12))
    speed = rng.uniform(0.2, 0.5) * dense / right(model, sequence, known="flops_per_token")
    return {
        "sequence": sequence,
        "tokens_per_s": round(speed * (devices if logged_by == "job" else 1), 1),
        "num_devices": devices,
        "peak": dense * (2 if sparsity else 1),
        "recompute": recompute,
        "logged_by": logged_by,
        "sparsity": sparsity,
    }


def right(model: dict[str, Any], run: Any, known: str) -> float:
    """Return the answer of the function `known`, by the calculator."""
    config = calc.ModelConfig(**model, biases=False, learned_positions=False)
    sequence = run if known == "flops_per_token" else run["sequence"]
    own = calc.flops_per_token(config, parameters="matmul", sequence=sequence)
    if known == "flops_per_token":
        return float(own)
    again = {"none": 0, "full": float(own) / 3, "selective": float(own["attention"]) / 3}
    total = float(own) + (again[run["recompute"]] if known == "hfu" else 0)
    devices = run["num_devices"] if run["logged_by"] == "device" else 1
    peak = run["peak"] / (2 if run["sparsity"] else 1)
    return float(calc.mfu(run["tokens_per_s"] * devices, total, run["num_devices"], peak))


SCORES = 'model["heads"] * model["head_dim"] * sequence'
HEAD = 'model["hidden"] * model["vocab"]'
ATTENTION = '2 * model["hidden"] * model["head_dim"] * (model["heads"] + model["kv_heads"])'
OF_HIDDEN = '2 * model["hidden"] ** 2 * (1 + model["kv_heads"] / model["heads"])'
LOGGED, PEAK = '(devices if run["logged_by"] == "device" else 1)', '(2 if run["sparsity"] else 1)'
OWN = 'flops_per_token(model, run["sequence"])'
MISTAKES = [
    g.Mistake(
        "miscounts the scores",
        "6 N covers the weights only. Scores and their product with the values have no weights: "
        "with backward they take 12 * layers * heads * head_dim * sequence. The contract counts "
        "the pairs that a causal mask hides too. context is not the sequence of the run.",
        g.patches(SCORES, "0", f"{SCORES} / 2", SCORES.replace("sequence", 'model["context"]')),
    ),
    g.Mistake(
        "miscounts embedding and head",
        "Tokens are looked up in the embedding, which multiplies nothing. The head multiplies "
        "hidden * vocab weights with every token, once, also where it uses the embedding's matrix: "
        "tied only means that these weights are stored once.",
        g.patches(HEAD, "0", f'(not model["tied"]) * {HEAD}', f'(2 - model["tied"]) * {HEAD}'),
    ),
    g.Mistake(
        "miscounts the matrices of a layer",
        "Queries and output have hidden * heads * head_dim weights each, keys and values hidden * "
        "kv_heads * head_dim. heads * head_dim need not be hidden. An MLP has two matrices of "
        "hidden * ffn weights, gate, up and down are three.",
        [
            g.patch(ATTENTION, '4 * model["hidden"] * model["heads"] * model["head_dim"]'),
            g.patch(ATTENTION, OF_HIDDEN, SCORES, 'model["hidden"] * sequence'),
            g.patch('(3 if model["gated"] else 2)', "2"),
        ],
        hint=3,
    ),
    g.Mistake(
        "counts another number of passes",
        "A weight takes 2 operations per token forward and 4 backward, for the gradients of the "
        "input and of the weight: 6. So do scores: 12 * layers * heads * head_dim * sequence.",
        g.patches("return 3 * (", "return (", "return 1.5 * ("),
    ),
    g.Mistake(
        "divides by the wrong peak",
        "Divide by the dense peak, for training multiplies dense matrices. With sparsity=True it "
        "is half of the number on the data sheet. With sparsity=False it is that number.",
        g.patches(PEAK, "1", "2"),
    ),
    g.Mistake(
        "takes one device's tokens for the job's, or the reverse",
        "Tokens and peak must belong to the same devices: both to one, or both to all. So multiply "
        "tokens of one device by num_devices if you divide by the peak of all.",
        g.patches(LOGGED, "1", "devices"),
        hint=2,
    ),
    g.Mistake(
        "miscounts recomputation",
        "MFU has no recomputed operations, HFU has all of them. Full recomputation repeats one "
        "whole forward, matrices, scores and head: HFU is then 4/3 of MFU. Selective recomputation "
        "repeats the scores and their product with the values, once forward, and nothing else.",
        [
            g.patch(f"return {OWN} *", "return hfu(model, run)\n    return 0 *"),
            *g.patches(
                f"{OWN} + again",
                OWN,
                f'{OWN} + again * (1.5 if run["recompute"] == "full" else 1)',
                f'{OWN} + again - (run["recompute"] == "full") * 2 * {HEAD}',
                f'{OWN} * (1 if run["recompute"] == "none" else 4 / 3)',
            ),
        ],
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    same=lambda got, right, case: isinstance(got, int | float) and abs(got - right) <= 1e-3 * right,
    closed=("labkit.calc",),
    shown="you count what multiplies, and turn a log into MFU and HFU, whatever it says about the "
    "peak, the tokens and recomputation",
)

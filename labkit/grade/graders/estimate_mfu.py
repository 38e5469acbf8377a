"""Grade estimate_mfu: drawn models and logs, against the calculator."""

import itertools
from collections.abc import Iterator
from typing import Any

from labkit import calc
from labkit.grade import grader as g

FUNCTIONS = ("flops_per_token", "mfu", "hfu")


def cases(draw: g.Draw) -> list[g.Case]:
    """Each kind of log with some model, for each function."""
    kinds = [*itertools.product(("none", "full", "selective"), ("job", "device"), (False, True))]
    pairs = [
        (model, run_of(model, draw, *kind))
        for model, kind in zip(models(draw), [kinds[0], *draw.rng.sample(kinds, len(kinds))])
    ]
    return [
        g.Case(f"{model}; {asked}", model, asked, function=function, known=function)
        for function in FUNCTIONS
        for model, run in pairs
        for asked in [run["sequence"] if function == "flops_per_token" else run]
    ]


def models(draw: g.Draw) -> Iterator[dict[str, Any]]:
    """13 models of different forms, simple ones first."""
    rng = draw.rng
    for gated, tied, share, width in 2 * [
        (False, False, 1, 1),
        (True, False, 1, 1),
        (True, False, 4, 1),
        (False, True, 8, 1),
        (True, True, 2, 1),
        (True, False, 8, 2),
        (False, True, 1, 2),
    ]:
        heads = 8 * rng.randrange(2, 9)
        yield {
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
    """A run that uses 20 to 50% of its devices."""
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
    """The answer of the function `known`, by the calculator."""
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


HEAD, FEATURES = 'model["hidden"] * model["vocab"]', 'model["heads"] * model["head_dim"]'
ATTENTION = '2 * model["hidden"] * model["head_dim"] * (model["heads"] + model["kv_heads"])'
OF_HIDDEN = '2 * model["hidden"] ** 2 * (1 + model["kv_heads"] / model["heads"])'
MLP = '(3 if model["gated"] else 2) * model["hidden"] * model["ffn"]'
SCORES, MATRICES = '_forward_of_scores(model, run["sequence"])', "_forward_of_matrices(model)"
LOGGED, PEAK = '(devices if run["logged_by"] == "device" else 1)', '(2 if run["sparsity"] else 1)'
OWN = 'flops_per_token(model, run["sequence"])'
MISTAKES = [
    g.Mistake(
        "miscounts the scores",
        "6 N covers the weights only. Scores and their product with the values have no weights. "
        "Each takes 2 * head_dim operations per head and pair of tokens, forward: with backward "
        "that is 12 * layers * heads * head_dim * sequence. Every query head has its own scores, "
        "and the contract counts the pairs that a causal mask hides too.",
        g.patches(
            FEATURES,
            "0",
            *(f"{share} * {FEATURES}" for share in (1 / 2, 1 / 3, 2 / 3)),
            'model["kv_heads"] * model["head_dim"]',
            'model["hidden"]',
        ),
    ),
    g.Mistake(
        "takes the context for the sequence",
        "context is the longest sequence that the model supports. The run has shorter sequences, "
        "with fewer scores per token.",
        g.patch('["head_dim"] * sequence', '["head_dim"] * model["context"]'),
        hint=3,
    ),
    g.Mistake(
        "miscounts embedding and head",
        "Tokens are looked up in the embedding, which multiplies nothing. The head multiplies "
        "hidden * vocab weights with every token, once, also where it uses the embedding's matrix: "
        "tied only means that these weights are stored once.",
        [
            g.patch(HEAD, f"{times} * {HEAD}")
            for times in ("0", "2", '(2 - model["tied"])', '(not model["tied"])')
        ],
    ),
    g.Mistake(
        "miscounts the matrices of a layer",
        "Queries and output have hidden * heads * head_dim weights each, keys and values hidden * "
        "kv_heads * head_dim. heads * head_dim need not be hidden. An MLP has two matrices of "
        "hidden * ffn weights, gate, up and down are three.",
        [
            *g.patches(
                ATTENTION,
                f'4 * model["hidden"] * {FEATURES}',
                '4 * model["hidden"] ** 2',
                OF_HIDDEN,
                f'{ATTENTION} - model["hidden"] * {FEATURES}',
            ),
            *g.patches('(3 if model["gated"] else 2)', "2", "3"),
            g.patch(MLP, '8 * model["hidden"] ** 2'),
            g.patch(ATTENTION, OF_HIDDEN, FEATURES, 'model["hidden"]'),
        ],
        hint=3,
    ),
    g.Mistake(
        "counts another number of passes",
        "A weight takes 2 operations per token forward and 4 backward, for the gradients of the "
        "input and of the weight: 6. So do scores: 12 * layers * heads * head_dim * sequence.",
        [g.patch("return 3 * (", f"return {times} * (") for times in (0.5, 1, 1.5, 2, 4)],
    ),
    g.Mistake(
        "divides by the wrong peak",
        "Divide by the dense peak, for training multiplies dense matrices. With sparsity=True it "
        "is half of the number on the data sheet. With sparsity=False it is that number.",
        g.patches(PEAK, "1", "2", '(4 if run["sparsity"] else 1)', '(1 if run["sparsity"] else 2)'),
    ),
    g.Mistake(
        "takes one device's tokens for the job's, or the reverse",
        "Tokens and peak must belong to the same devices: both to one, or both to all. So multiply "
        "tokens of one device by num_devices if you divide by the peak of all.",
        g.patches(LOGGED, "1", "devices", '(devices if run["logged_by"] == "job" else 1)'),
        hint=2,
    ),
    g.Mistake(
        "gives percent",
        "The contract is a share: 0.4, not 40.",
        g.patch("return tokens_per_s", "return 100 * tokens_per_s"),
        hint=3,
    ),
    g.Mistake(
        "takes MFU for HFU, or the reverse",
        "MFU has the operations of the model, also where devices compute some of them twice. HFU "
        "has all operations that the devices compute, including recomputed ones.",
        [
            g.patch(f"return {OWN} *", "return hfu(model, run)\n    return 0 *"),
            g.patch(f"{OWN} + again", OWN),
        ],
    ),
    g.Mistake(
        "miscounts recomputation",
        "Full recomputation repeats one whole forward, matrices, scores and head: HFU is then 4/3 "
        "of MFU. Selective recomputation repeats the scores and their product with the values, "
        "once forward: 4 * layers * heads * head_dim * sequence operations, and nothing else.",
        [
            g.patch(f"{OWN} + again", f'{OWN} + again + (run["recompute"] == "{kind}") * ({more})')
            for kind in ("full", "selective")
            for more in (
                *(f"{times} * again" for times in (-1, -0.5, 0.5, 1, 2)),
                *(f"-{SCORES}", f"-{MATRICES}", f"-2 * {HEAD}"),
                *(MATRICES, f'2 * model["layers"] * {ATTENTION}'),
            )
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

"""Grade estimate_mfu: drawn models and logs, against the calculator."""

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

Model = Mapping[str, Any]
Run = Mapping[str, Any]
FUNCTIONS = ("flops_per_token", "mfu", "hfu")


def cases(draw: Draw) -> list[Case]:
    """Each kind of log with some model, for each function."""
    kinds = [
        {"recompute": recompute, "logged_by": by, "sparsity": sparsity}
        for recompute in ("none", "full", "selective")
        for by in ("job", "device")
        for sparsity in (False, True)
    ]
    pairs = [
        (model, run_of(model, draw, kind))
        for model, kind in zip(models(draw), [kinds[0], *draw.rng.sample(kinds, len(kinds))])
    ]
    return [
        Case(f"{model}; {asked}", model, asked, function=function, known=function)
        for function in FUNCTIONS
        for model, run in pairs
        for asked in [run["sequence"] if function == "flops_per_token" else run]
    ]


def models(draw: Draw) -> Iterator[Model]:
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


def run_of(model: Model, draw: Draw, kind: Run) -> Run:
    """A run that uses 20 to 50% of its devices."""
    rng = draw.rng
    sequence, devices = model["context"] // rng.choice((2, 4)), rng.randrange(3, 129)
    dense = rng.choice((125e12, 312e12, 989.5e12, 2250e12))
    speed = rng.uniform(0.2, 0.5) * dense / flops(model, sequence)
    return {
        "sequence": sequence,
        "tokens_per_s": round(speed * (devices if kind["logged_by"] == "job" else 1), 1),
        "num_devices": devices,
        "peak": dense * (2 if kind["sparsity"] else 1),
        **kind,
    }


def right(model: Model, run: Any, known: str) -> float:
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


def flops(model: Model, sequence: int) -> float:
    """The right operations of one token."""
    return right(model, sequence, "flops_per_token")


RIGHT: dict[str, Any] = {
    # Weights of one layer, and of the head.
    "attention": lambda m: 2 * m["hidden"] * m["head_dim"] * (m["heads"] + m["kv_heads"]),
    "mlp": lambda m: (3 if m["gated"] else 2) * m["hidden"] * m["ffn"],
    "head": lambda m: m["hidden"] * m["vocab"],
    # Features of all heads, and tokens to which one token attends.
    "features": lambda m: m["heads"] * m["head_dim"],
    "tokens": lambda m, sequence: sequence,
    # Forward and backward, in times of forward.
    "passes": 3,
    "score_passes": 3,
}


def count(**others: Any) -> Callable[[Model, int], float]:
    """The formula with RIGHT, but for `others`."""
    its = types.SimpleNamespace(**{**RIGHT, **others})

    def formula(m: Model, sequence: int) -> float:
        weights = m["layers"] * (its.attention(m) + its.mlp(m)) + its.head(m)
        scores = 2 * m["layers"] * its.features(m) * its.tokens(m, sequence)
        return 2 * (its.passes * weights + its.score_passes * scores)

    return formula


def again(full: Any, selective: Any) -> Callable[[Model, Run], float]:
    """The formula of HFU, for other recomputed operations."""
    kinds = {"none": lambda m, sequence: 0, "full": full, "selective": selective}

    def formula(m: Model, run: Run) -> float:
        share = kinds[run["recompute"]](m, run["sequence"]) / flops(m, run["sequence"])
        return right(m, run, "mfu") * (1 + share)

    return formula


def times(*factors: Callable[[Run], float]) -> list[Any]:
    """Formulas of both utilisations, that many times too large."""

    def formula(of: str, factor: Callable[[Run], float]) -> Callable[[Model, Run], float]:
        return lambda m, run: right(m, run, of) * factor(run)

    return [formula(of, factor) for of in ("mfu", "hfu") for factor in factors]


forward, scores = count(passes=1, score_passes=1), count(passes=0, score_passes=1)
HEAD, FEATURES = 'model["hidden"] * model["vocab"]', 'model["heads"] * model["head_dim"] * sequence'
AGAIN, LOGGED = 'if run["recompute"] != "none"', '(devices if run["logged_by"] == "device" else 1)'
PEAK, RUN = ' / (2 if run["sparsity"] else 1)', 'flops_per_token(model, run["sequence"])'

MISTAKES = [
    Mistake(
        "counts no scores",
        "6 N covers the weights only. Scores and their product with the values "
        "have no weights. They add 12 * layers * heads * head_dim * sequence operations.",
        formula=count(score_passes=0),
        made_by=patch(FEATURES, "0"),
    ),
    Mistake(
        "counts half of attention's pairs",
        "Two products look at other tokens, each with 2 * heads * head_dim operations per pair. "
        "The contract counts the pairs that a causal mask hides too.",
        formula=count(score_passes=1.5),
        made_by=patch(FEATURES, FEATURES + " / 2"),
    ),
    Mistake(
        "counts the embedding",
        "Tokens are looked up in the embedding, which multiplies nothing. If the head uses the "
        "same matrix, it counts once, as the head.",
        formula=[
            count(head=lambda m: 2 * m["hidden"] * m["vocab"]),
            count(head=lambda m: (1 if m["tied"] else 2) * m["hidden"] * m["vocab"]),
        ],
        made_by=patch(HEAD, f'(1 if model["tied"] else 2) * {HEAD}'),
    ),
    Mistake(
        "forgets the head",
        "The head multiplies hidden * vocab weights with every token. Tied only means that these "
        "weights are stored once.",
        hint=3,
        formula=[
            count(head=lambda m: 0),
            count(head=lambda m: 0 if m["tied"] else m["hidden"] * m["vocab"]),
        ],
        made_by=patch(HEAD, f'{HEAD} * (not model["tied"])'),
    ),
    Mistake(
        "miscounts attention's matrices",
        "Four matrices: queries and output have hidden * heads * head_dim weights, keys and values "
        "hidden * kv_heads * head_dim. heads * head_dim need not be hidden.",
        hint=3,
        formula=[
            count(attention=lambda m: 4 * m["hidden"] * m["heads"] * m["head_dim"]),
            count(attention=lambda m: 4 * m["hidden"] ** 2),
            count(attention=lambda m: 2 * m["hidden"] ** 2 * (1 + m["kv_heads"] / m["heads"])),
            count(attention=lambda m: RIGHT["attention"](m) - m["hidden"] * RIGHT["features"](m)),
        ],
        made_by=patch('model["kv_heads"])', 'model["heads"])'),
    ),
    Mistake(
        "miscounts the features of the scores",
        "Every query head has its own scores. All heads together have heads * head_dim features. "
        "Shared keys save weights, but no scores. hidden may be another number.",
        hint=3,
        formula=[
            count(features=lambda m: m["kv_heads"] * m["head_dim"]),
            count(features=lambda m: m["hidden"]),
        ],
        made_by=patch(FEATURES, 'model["hidden"] * sequence'),
    ),
    Mistake(
        "gives every MLP the same matrices",
        "A gated MLP has three matrices: gate, up and down. An MLP without a gate has two. "
        "Each has hidden * ffn weights.",
        formula=[
            count(mlp=lambda m: 2 * m["hidden"] * m["ffn"]),
            count(mlp=lambda m: 3 * m["hidden"] * m["ffn"]),
            count(mlp=lambda m: 8 * m["hidden"] ** 2),
        ],
        made_by=patch('(3 if model["gated"] else 2)', "2"),
    ),
    Mistake(
        "counts another number of passes",
        "A weight takes 2 operations per token forward and 4 backward, for the gradients of the "
        "input and of the weight: 6. So do scores: 12 * layers * heads * head_dim * sequence.",
        formula=[count(passes=k, score_passes=k) for k in (0.5, 1, 1.5, 2, 4)]
        + [count(score_passes=k) for k in (1, 2)],
        made_by=patch("return 3 * (_for", "return 2 * (_for"),
    ),
    Mistake(
        "takes the context for the sequence",
        "context is the longest sequence that the model supports. The run has shorter sequences, "
        "with fewer scores per token.",
        hint=3,
        formula=[
            count(tokens=lambda m, sequence: m["context"]),
            lambda m, run: (
                right(m, run, "mfu") * flops(m, m["context"]) / flops(m, run["sequence"])
            ),
        ],
        made_by=patch('model["head_dim"] * sequence', 'model["head_dim"] * model["context"]'),
    ),
    Mistake(
        "divides by the wrong peak",
        "Divide by the dense peak, for training multiplies dense matrices. With sparsity=True it "
        "is half of the number on the data sheet. With sparsity=False it is that number.",
        formula=times(
            lambda run: 0.5 if run["sparsity"] else 1,
            lambda run: 1 if run["sparsity"] else 2,
            lambda run: 0.25 if run["sparsity"] else 1,
            lambda run: 0.5 if run["sparsity"] else 2,
        ),
        made_by=patch(PEAK, ""),
    ),
    Mistake(
        "takes one device's tokens for the job's, or the reverse",
        "Tokens and peak must belong to the same devices: both to one, or both to all. So multiply "
        "tokens of one device by num_devices if you divide by the peak of all.",
        hint=2,
        formula=times(
            lambda run: 1 / run["num_devices"] if run["logged_by"] == "device" else 1,
            lambda run: 1 if run["logged_by"] == "device" else run["num_devices"],
            lambda run: run["num_devices"] ** (-1 if run["logged_by"] == "device" else 1),
        ),
        made_by=patch(LOGGED, "1"),
    ),
    Mistake(
        "gives percent",
        "The contract is a share: 0.4, not 40.",
        hint=3,
        formula=times(lambda run: 100),
        made_by=patch("tokens_per_s / (devices", "100 * tokens_per_s / (devices"),
    ),
    Mistake(
        "counts recomputation in MFU",
        "MFU has the operations of the model, also where devices compute some of them twice. With "
        "recomputed operations it is HFU.",
        formula=lambda m, run: right(m, run, "hfu"),
        function="mfu",
        made_by=patch(f"return {RUN} *", "return hfu(model, run)\n    return 0 *"),
    ),
    Mistake(
        "counts no recomputation in HFU",
        "HFU has all operations that the devices compute, including recomputed ones.",
        formula=lambda m, run: right(m, run, "mfu"),
        function="hfu",
        made_by=patch(f"operations = {RUN} + again", f"operations = {RUN}"),
    ),
    Mistake(
        "miscounts full recomputation",
        "Full recomputation repeats one whole forward: matrices, scores and head. HFU is then "
        "4/3 of MFU.",
        hint=2,
        formula=[
            again(full, scores)
            for full in (
                lambda m, sequence: 2 * forward(m, sequence),
                lambda m, sequence: 3 * forward(m, sequence),
                lambda m, sequence: forward(m, sequence) - scores(m, sequence),
                lambda m, sequence: forward(m, sequence) - 2 * RIGHT["head"](m),
                lambda m, sequence: 0,
                scores,
            )
        ],
        made_by=patch(AGAIN, 'if run["recompute"] == "selective"'),
    ),
    Mistake(
        "miscounts selective recomputation",
        "Selective recomputation repeats the scores and their product with the values, once "
        "forward: 4 * layers * heads * head_dim * sequence operations. It repeats nothing else.",
        hint=2,
        formula=[
            again(forward, selective)
            for selective in (
                lambda m, sequence: 0,
                lambda m, sequence: 3 * scores(m, sequence),
                lambda m, sequence: scores(m, sequence) / 2,
                lambda m, sequence: scores(m, sequence) + 2 * m["layers"] * RIGHT["attention"](m),
                forward,
            )
        ],
        made_by=patch(AGAIN, 'if run["recompute"] == "full"'),
    ),
]

GRADER = Questions(
    name="estimate_mfu",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    same=lambda got, right, case: isinstance(got, int | float) and abs(got - right) <= 1e-3 * right,
    closed=("labkit.calc",),
    shown="you count what multiplies, and turn a log into MFU and HFU, whatever it says about the "
    "peak, the tokens and recomputation",
)

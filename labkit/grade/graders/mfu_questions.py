"""Models and lines of logs for estimate_mfu; what is right is told by the calculator."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit import calc
from labkit.grade.answers import Question

RECOMPUTE = ("none", "full", "selective")
_DENSE_PEAKS = (125e12, 275e12, 312e12, 989.5e12, 2250e12)


@dataclass(frozen=True)
class Asked:
    """A model, and a run of it."""

    config: calc.ModelConfig
    sequence: int
    tokens_per_s: float
    """Of the job."""
    num_devices: int
    dense_peak: float
    logged_by: str = "job"
    sparsity: bool = False
    recompute: str = "none"

    @property
    def model(self) -> dict[str, Any]:
        """As the learner's functions get it."""
        config = self.config
        return {
            "layers": config.layers,
            "hidden": config.hidden,
            "vocab": config.vocab,
            "heads": config.heads,
            "head_dim": config.features_per_head,
            "kv_heads": config.num_kv_heads,
            "ffn": config.mlp_features,
            "gated": config.gated,
            "tied": config.tied,
            "context": config.context,
        }

    @property
    def run(self) -> dict[str, Any]:
        """As the learner's functions get it."""
        by_device = self.logged_by == "device"
        return {
            "sequence": self.sequence,
            "tokens_per_s": self.tokens_per_s / (self.num_devices if by_device else 1),
            "logged_by": self.logged_by,
            "num_devices": self.num_devices,
            "peak": self.dense_peak * (2 if self.sparsity else 1),
            "sparsity": self.sparsity,
            "recompute": self.recompute,
        }

    def __str__(self) -> str:
        config = self.config
        mlp = "gated" if config.gated else "plain"
        head = "tied" if config.tied else "untied"
        return (
            f"{config.layers} layers of {config.hidden}, {config.heads} heads and "
            f"{config.num_kv_heads} of keys, {mlp} MLP, {head} head, "
            f"sequences of {self.sequence:,}; {self.num_devices} devices, logged by "
            f"{self.logged_by}, peak {'with sparsity' if self.sparsity else 'dense'}, recompute "
            f"{self.recompute}"
        )


def model_flops(asked: Asked) -> calc.Result:
    """The model's own, of one token."""
    return calc.flops_per_token(asked.config, parameters="matmul", sequence=asked.sequence)


def hardware_flops(asked: Asked) -> calc.Result | float:
    """With those that are repeated."""
    if asked.recompute == "full":
        return calc.flops_per_token(
            asked.config, parameters="matmul", sequence=asked.sequence, recompute="full"
        )
    own = model_flops(asked)
    if asked.recompute == "none":
        return own
    return float(own) + float(own.parts["attention"]) / 3  # a third of it is forward


def right_flops(asked: Asked) -> float:
    """By the calculator."""
    return float(model_flops(asked))


def right_mfu(asked: Asked) -> float:
    """By the calculator."""
    return _utilisation(asked, model_flops(asked))


def right_hfu(asked: Asked) -> float:
    """By the calculator."""
    return _utilisation(asked, hardware_flops(asked))


def _utilisation(asked: Asked, flops: calc.Result | float) -> float:
    return float(calc.mfu(asked.tokens_per_s, flops, asked.num_devices, asked.dense_peak))


def draw(rng: random.Random) -> list[Question[Asked]]:
    """Of all three functions."""
    models = [*_models(rng)]
    # One after the other, so that each kind of log meets each kind of recomputation.
    runs = [
        _run(config, rng, logged_by, sparsity, recompute)
        for config, (recompute, logged_by, sparsity) in zip(models, _logs(rng))
    ]
    mixed = rng.sample(runs, len(runs))
    return [
        *(Question("flops_per_token", (a.model, a.sequence), str(a), a) for a in runs),
        *(Question("mfu", (a.model, a.run), str(a), a) for a in runs),
        *(Question("hfu", (a.model, a.run), str(a), a) for a in mixed),
    ]


def _logs(rng: random.Random) -> list[tuple[str, str, bool]]:
    kinds = [
        (recompute, by, sparse)
        for recompute in RECOMPUTE
        for by in ("job", "device")
        for sparse in (False, True)
    ]
    return [("none", "job", False), *rng.sample(kinds, len(kinds)), *rng.sample(kinds, 2)]


def _models(rng: random.Random) -> Iterator[calc.ModelConfig]:
    """Each way to differ, alone and together, at sizes at which a norm is no thousandth."""
    yield _model(rng, tied=True, gated=False)
    for gated in (False, True):
        for tied in (True, False):
            for share in (1, rng.choice((2, 4, 8))):
                yield _model(rng, gated=gated, tied=tied, queries_per_key=share)
    yield _model(rng, gated=True, tied=False, queries_per_key=4, wide_heads=True)
    yield _model(rng, gated=False, tied=True, wide_heads=True)
    yield _model(rng, gated=True, tied=True, layers=rng.randrange(6, 13), vocab=256_000)
    yield _model(rng, gated=False, tied=False, layers=rng.randrange(6, 13), vocab=152_064)
    yield _model(rng, gated=True, tied=False, queries_per_key=8, context=65_536)
    yield _model(rng, gated=False, tied=True, context=32_768)


def _model(
    rng: random.Random,
    *,
    gated: bool,
    tied: bool,
    queries_per_key: int = 1,
    wide_heads: bool = False,
    layers: int | None = None,
    vocab: int | None = None,
    context: int | None = None,
) -> calc.ModelConfig:
    heads, head_dim = 8 * rng.randrange(2, 9), 128
    hidden = heads * head_dim
    return calc.ModelConfig(
        layers=rng.randrange(16, 97) if layers is None else layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads // queries_per_key,
        head_dim=2 * head_dim if wide_heads else head_dim,
        ffn=rng.choice((hidden * 11 // 4, hidden * 7 // 2, hidden * 5)),
        gated=gated,
        tied=tied,
        biases=False,
        learned_positions=False,
        vocab=rng.choice((32_000, 50_304, 100_352, 128_256)) if vocab is None else vocab,
        context=rng.choice((4_096, 8_192, 16_384)) if context is None else context,
    )


def _run(
    config: calc.ModelConfig, rng: random.Random, logged_by: str, sparsity: bool, recompute: str
) -> Asked:
    """A run that uses 20 to 50% of its devices."""
    sequence, devices = config.context // rng.choice((2, 4)), rng.randrange(3, 129)
    peak = rng.choice(_DENSE_PEAKS)
    of_token = float(calc.flops_per_token(config, parameters="matmul", sequence=sequence))
    tokens_per_s = round(rng.uniform(0.2, 0.5) * devices * peak / of_token) + 1
    return Asked(config, sequence, tokens_per_s, devices, peak, logged_by, sparsity, recompute)

"""Activations that a rank keeps from forward to backward, for layers.

Per layer and per token of a microbatch, in bytes, for 2-byte numbers, D hidden features, t ranks of
tensor parallelism, sequences of s tokens (Korthikanti et al., figures 2 to 4):

    kept                        bytes             without       with sequence
                                                  parallelism   parallelism
    inputs of the two norms     2D + 2D           whole         / t
    inputs of the linear layers 2D + 2D           whole         / t
    dropout masks               D + D             whole         / t
    query, key, value           2HK + 2*2GK       / t           / t
    softmax, mask, dropped      2Hs + Hs + 2Hs    / t           / t     not with flash, selective
    input of the output layer   2HK               / t           / t
    MLP, inside                 2F + 2F, gated 4*2F / t         / t     fused: gated 3*2F

For G = H and F = 4D: D (10 + 24/t + 5Hs/(Dt)), and all of it / t with sequence parallelism.
Context parallelism shards s. The second row is sharded as in the paper: a rank keeps its shard, and
gathers the whole tensor again in backward. recompute="selective" keeps nothing of softmax and its
neighbours, and recompute="full" keeps only each layer's input, 2D. recompute="operations" keeps
that, attention's output, and every second product of matrices: 2D + 2HK + 2GK + 2HK + 2F + 2D.

Runtimes that keep gathered inputs, as torch's DTensor does, have the second row whole where the
layer is kept or recomputed: gathered_inputs=True. loss.py has the head and the loss.

Wire: nothing. Paper: Korthikanti et al., "Reducing activation recomputation in large transformer
models", arXiv:2205.05198.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from labkit import arguments
from labkit.calc.layout import RECOMPUTE
from labkit.calc.models import ModelConfig, model, sequence_length
from labkit.calc.parameters import with_copied_heads
from labkit.calc.result import Result, total
from labkit.calc.units import number_text

_LAYERS_SOURCE = "Korthikanti et al., arXiv:2205.05198, equations 1 to 6"


def activation_bytes(
    config: ModelConfig | str,
    microbatch: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    cp: int = 1,
    recompute: str = "none",
    flash: bool = False,
    *,
    sequence: int | None = None,
    itemsize: int = 2,
    dropout: bool = True,
    fused: bool = False,
    gathered_inputs: bool = False,
) -> Result:
    """Return the bytes that one rank keeps for one microbatch of all layers, by tensor.

    microbatch: sequences. sequence: tokens of each; None: the model's context. itemsize: bytes of
    an activation. dropout: masks are kept, one byte per number. flash: attention that never
    writes its scores down, and keeps one float32 per row and head. fused: a gated MLP keeps gate,
    up and their product, and recomputes the activated gate. gathered_inputs: with sequence
    parallelism, inputs of linear layers are kept as they were gathered, whole on every rank.

    ValueError if ranks would shard heads, tokens or the MLP's features unevenly, for more tokens
    than learned positions, and for models with experts or latent attention, which keep other
    tensors.
    """
    config = model(config)
    _check_layers(config, tp, sequence_parallel, recompute)
    config = with_copied_heads(config, tp)
    tokens = tokens_of_a_rank(config, sequence, microbatch, cp, tp if sequence_parallel else 1)
    itemsize = arguments.counted("itemsize", itemsize)
    whole = tp if sequence_parallel else 1
    per_token = {"layer inputs": _Kept(itemsize * config.hidden, "b D", whole)}
    if recompute == "operations":
        per_token |= _second_products(config, itemsize, tp, whole, flash)
    elif recompute != "full":
        length = sequence_length(config, sequence)
        has_scores = not flash and recompute == "none"
        per_token = _per_token(
            config, itemsize, length, tp, whole, dropout, has_scores, flash, fused, gathered_inputs
        )
    return total(
        "activations of one microbatch",
        _over_all_layers(per_token, config.layers, tokens),
        formula=_formula(per_token.values()),
        substitution=f"{config.layers} * {tokens:,} * ("
        + " + ".join(each.numbers for each in per_token.values() if each.size)
        + ") B",
        convention=f"{itemsize} B numbers, recompute={recompute!r}, flash={flash}, "
        f"dropout={dropout}, sequence_parallel={sequence_parallel}"
        f"{', gathered inputs' if gathered_inputs else ''}; without logits and loss",
        source=_LAYERS_SOURCE,
    )


class _Kept(NamedTuple):
    """Bytes of one tensor, for one token in one layer."""

    size: float
    """Bytes of all ranks together."""
    letters: str
    ranks: int
    """Ranks that share the tensor."""

    @property
    def numbers(self) -> str:
        return number_text(self.size) + (f" / {self.ranks}" if self.ranks > 1 else "")


_LETTERS = {
    "L": "layers",
    "T": "tokens of a rank",
    "b": "bytes of a number",
    "D": "hidden features",
    "H": "heads",
    "G": "key-value heads",
    "K": "features of a head",
    "F": "features inside the MLP",
    "s": "tokens of a sequence",
    "t": "ranks of tensor parallelism",
}


def _formula(kept: Iterable[_Kept]) -> str:
    """Write the formula in letters, in the order of the parts, with what each letter means."""
    terms = [each.letters + (" / t" if each.ranks > 1 else "") for each in kept if each.size]
    formula = f"L T ({' + '.join(terms)})"
    said = [f"{letter} {what}" for letter, what in _LETTERS.items() if letter in formula]
    return f"{formula}; {', '.join(said)}"


def _per_token(
    config: ModelConfig,
    itemsize: int,
    length: int,
    tp: int,
    whole: int,
    dropout: bool,
    has_scores: bool,
    flash: bool,
    fused: bool,
    gathered_inputs: bool,
) -> dict[str, _Kept]:
    """Return the tensors that one layer keeps for one token, by name."""
    D, H, K = config.hidden, config.heads, config.features_per_head
    G, mlp = config.num_kv_heads, config.mlp_features
    scores = H * length * (2 * itemsize + 1 if dropout else itemsize)
    of_a_score = "(2 b + 1)" if dropout else "b"
    num_mlp = (3 if fused else 4) if config.gated else 2
    return {
        "norm inputs": _Kept(2 * itemsize * D, "2 b D", whole),
        "linear inputs": _Kept(2 * itemsize * D, "2 b D", 1 if gathered_inputs else whole),
        "dropout masks": _Kept(2 * D if dropout else 0, "2 D", whole),
        "query, key, value": _Kept(itemsize * (H * K + 2 * G * K), "b (H K + 2 G K)", tp),
        "attention scores": _Kept(scores if has_scores else 0, f"{of_a_score} H s", tp),
        "attention statistics": _Kept(4 * H if flash else 0, "4 H", tp),
        "attention output": _Kept(itemsize * H * K, "b H K", tp),
        "inside the MLP": _Kept(num_mlp * itemsize * mlp, f"{num_mlp} b F", tp),
    }


def _second_products(
    config: ModelConfig, itemsize: int, tp: int, whole: int, flash: bool
) -> dict[str, _Kept]:
    """Return by name the bytes kept if every second product of a layer is, and attention's output.

    Of query, key, value, out, gate, up and down: the first, the third, and so on.
    """
    D, query = config.hidden, config.heads * config.features_per_head
    key = config.num_kv_heads * config.features_per_head
    return {
        "query, value": _Kept(itemsize * (query + key), "b (H K + G K)", tp),
        "attention statistics": _Kept(4 * config.heads if flash else 0, "4 H", tp),
        "attention output": _Kept(itemsize * query, "b H K", tp),
        "inside the MLP": _Kept(itemsize * config.mlp_features, "b F", tp),
        "MLP output": _Kept(itemsize * D if config.gated else 0, "b D", whole),
    }


def _over_all_layers(per_token: Mapping[str, _Kept], layers: int, tokens: int) -> dict[str, Result]:
    parts = {}
    for name, each in per_token.items():
        if each.size:
            how = f"{layers} layers * {tokens:,} tokens * {number_text(each.size)} B"
            how += f" / {each.ranks}" if each.ranks > 1 else ""
            nbytes = layers * tokens * each.size / each.ranks
            parts[name] = Result(nbytes, "bytes", name, substitution=how)
    return parts


def _check_layers(config: ModelConfig, tp: int, sequence_parallel: bool, recompute: str) -> None:
    """Check that the formula covers these layers and this sharding."""
    tp = arguments.counted("tp", tp)
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r:.60}: give one of {', '.join(RECOMPUTE)}")
    if config.is_hybrid:
        raise ValueError(
            "no formula for what layers without attention or MLP keep for backward; "
            "calc.num_parameters and calc.cache_bytes count such models"
        )
    if config.is_latent or config.num_experts:
        raise ValueError(
            "activations of models with experts or latent attention depend on the routing and on "
            "what is kept of the compressed keys; this formula is for dense layers; "
            "calc.plan.memory counts such models"
        )
    cut = {"heads": config.heads, "features inside the MLP": config.mlp_features}
    if tp % config.num_kv_heads:  # else tp ranks have copies of them
        cut |= {"key-value heads": config.num_kv_heads}
    for what, number in cut.items():
        if number % tp:
            would_do = arguments.divisors_text(math.gcd(*cut.values()))
            raise ValueError(f"tp={tp} does not divide {number} {what}; give {would_do}")


def tokens_of_a_rank(
    config: ModelConfig, sequence: int | None, microbatch: int, cp: int = 1, cut_by: int = 1
) -> int:
    """Return a microbatch's tokens on one rank; sequence parallelism cuts them by `cut_by`."""
    cp, microbatch = arguments.counted("cp", cp), arguments.counted("microbatch", microbatch)
    length = sequence_length(config, sequence)
    if length % (cp * cut_by):
        by = [f"cp={cp}"] * (cp > 1) + [f"tp={cut_by} with sequence_parallel"] * (cut_by > 1)
        verb = "do not cut" if len(by) > 1 else "does not cut"
        nearest = max(length // (cp * cut_by), 1) * cp * cut_by
        raise ValueError(
            f"{' and '.join(by)} {verb} {length} tokens into equal parts; give sequence={nearest}, "
            f"or another multiple of {cp * cut_by}"
        )
    return microbatch * length // cp

"""Floating-point operations of a token, how long training takes, and how well the machine is used.

Each weight of a matrix takes a multiplication and an addition for each token: 2 forward, and twice
that backward (for the inputs and for the weights): 6 N. Attention's scores multiply no weights:
QK^T and their product with V take 2 * 2 HK operations for each token attended to (with latent
attention 2 H(K+R) and 2 HV, and HK stands for their mean):

    forward and backward of a token    6 N + 12 L H K s      every pair of tokens counted
                                       6 N +  6 L H K s      causal: half of the pairs

Tools count N differently, because the embedding is looked up and multiplies nothing, the head
multiplies, and a tied table does both: "all" (PaLM's and most), "non_embedding" (Kaplan et al.),
"matmul" (all that is multiplied: no tables of embeddings and positions, but the head; norms and
biases, a thousandth, stay in). For a mixture of experts, N counts only the parameters that a token
goes through.

    MFU    tokens/s * model FLOPs per token / (devices * peak)          no recomputation counted
    HFU    the same with all that was computed, recomputation too
    days   6 T P / (n X)    T tokens, P parameters, n devices, X FLOP/s that each achieves

8, not 6, where activations are recomputed in full: forward twice.

Papers: Kaplan et al., arXiv:2001.08361, section 2.1; Chowdhery et al., PaLM, arXiv:2204.02311,
appendix B (MFU); Narayanan et al., arXiv:2104.04473, section 5.1, and equation 4 (days).
"""

from __future__ import annotations

from collections import Counter

from labkit import arguments
from labkit.calc.models import Layer, ModelConfig, model, sequence_length
from labkit.calc.parameters import active_parameters
from labkit.calc.result import Result, number_of, total
from labkit.calc.units import number_text

COUNTED = ("all", "non_embedding", "matmul")
# Forward, backward for the inputs, backward for the weights; full recomputation: forward again.
_PASSES = {"none": 3, "full": 4}
RECOMPUTED = "recomputed"
"""Name of the part that counts for the hardware (HFU) and not for the model (MFU)."""


def flops_per_token(
    config: ModelConfig | str,
    *,
    attention: bool = True,
    causal: bool = False,
    sequence: int | None = None,
    parameters: str = "all",
    training: bool = True,
    recompute: str = "none",
) -> Result:
    """Count operations of one token, forward and backward; training=False: forward only.

    attention: count scores; causal: only those that a mask leaves. sequence: tokens
    attended to; None: the model's context. parameters: "all", "non_embedding" or "matmul".
    recompute: "full" adds the second forward pass as a part of its own, "recomputed": these are
    hardware FLOPs, not model FLOPs. ValueError for recomputation without a backward pass, for
    more tokens than learned positions, and for an unknown choice.
    """
    config = model(config)
    length = sequence_length(config, sequence)
    _check_recompute(recompute)
    if recompute != "none" and not training:
        raise ValueError(
            f"recompute={recompute!r:.60} with training=False: without a backward pass nothing is "
            "computed again; leave one of them out"
        )
    passes = _PASSES[recompute] if training else 1
    num, per_pair = _counted(config, parameters), 2 if causal else 4
    parts = _by_part(num, per_pair if attention else 0, config, length, 3 if training else 1)
    if recompute == "full":
        forward = float(sum(parts.values())) / _PASSES["none"]
        parts[RECOMPUTED] = Result(forward, "FLOP", RECOMPUTED, substitution="forward again")
    return total(
        "operations of one token",
        parts,
        formula=f"{2 * passes} N" + (f" + {per_pair * passes} L H K s" if attention else ""),
        convention=f"parameters={parameters!r}, {'causal' if causal else 'all pairs'}, "
        f"{'training' if training else 'forward only'}, recompute={recompute!r}",
        source="Kaplan et al., arXiv:2001.08361; Chowdhery et al., arXiv:2204.02311, appendix B",
    )


def training_flops(num_params: float | Result, tokens: float, recompute: str = "none") -> Result:
    """Count operations of training on `tokens`, less attention: 6 N D; recompute="full": 8 N D.

    training_flops(174.6e9, 300e9)    3.143e+23 FLOP, GPT-3's
    TypeError and ValueError unless parameters and tokens are numbers above 0.
    """
    _check_recompute(recompute)
    num = number_of(num_params, "num_params", "parameters")
    has_all = isinstance(num_params, Result) and num_params.name == "parameters"
    if has_all and "experts" in num_params.parts:  # type: ignore[union-attr]
        raise ValueError(
            f"num_params={num_params}: a token goes through few of the experts; give "
            "calc.active_parameters(...)"
        )
    arguments.number("num_params", num, "a model has parameters", above=0)
    arguments.number("tokens", tokens, "training takes tokens", above=0)
    factor = 2 * _PASSES[recompute]
    return Result(
        factor * num * tokens,
        "FLOP",
        "operations of training",
        f"{factor} N D",
        f"{factor} * {num:.4g} * {tokens:.4g}",
        convention="without the scores of attention",
        source="Brown et al., arXiv:2005.14165, appendix D",
    )


def _check_recompute(recompute: object) -> None:
    if not isinstance(recompute, str) or recompute not in _PASSES:
        raise ValueError(f"recompute={recompute!r:.60}: give 'none' or 'full'")


def _by_part(
    num: int, per_pair: int, config: ModelConfig, length: int, passes: int
) -> dict[str, Result]:
    """Return operations of the weights, and of the scores where a pair takes any."""
    parts: dict[str, tuple[float, str]] = {
        "parameters": (2 * passes * num, f"{2 * passes} * {num:,}")
    }
    if per_pair:
        features, factor = _attended(config), per_pair * passes
        seen = Counter(
            attended_tokens(config, kind, length, per_pair == 2) for kind in config.kinds
        )
        del seen[0]
        parts["attention"] = (
            factor * features * sum(layers * tokens for tokens, layers in seen.items()),
            " + ".join(
                f"{factor} * {layers} * {number_text(features)} * {number_text(tokens)}"
                for tokens, layers in seen.items()
            ),
        )
    return {
        name: Result(count, "FLOP", name, substitution=how) for name, (count, how) in parts.items()
    }


def attended_tokens(config: ModelConfig, kind: Layer, length: int, causal: bool) -> float:
    """Return the tokens that one looks at in a layer, of which causal attention counts half.

    Of a window W < s a token sees W, and the first W tokens fewer: W s - W^2 / 2 pairs in all.
    """
    most = config.seen_tokens(kind, length)
    return most * (2 - most / length) if causal and most < length else most


def _attended(config: ModelConfig) -> float:
    """Return HK: the features of queries and values over all heads; their mean if they differ."""
    if not config.is_latent:
        return config.heads * config.features_per_head
    of_key = config.features_per_head + config.rope_head_dim
    return config.heads * (of_key + config.value_head_dim) / 2


def _counted(config: ModelConfig, parameters: str) -> int:
    if parameters not in COUNTED:
        raise ValueError(f"parameters={parameters!r:.60}: give one of {', '.join(COUNTED)}")
    counted = active_parameters(config)
    num = int(counted)
    if parameters == "all":
        return num
    tables = ["embedding", *(["positions"] if config.position_rows else [])]
    if parameters == "non_embedding":
        tables += [] if config.tied else ["head"]
    elif config.tied:
        tables.remove("embedding")  # it multiplies, as the head
    return num - sum(int(counted[name]) for name in tables)


def mfu(
    tokens_per_s: float,
    flops_per_token: float | Result,
    num_devices: int,
    peak_flops_per_s: float,
) -> Result:
    """Return model FLOPs utilisation: the share of what all devices could compute at their peak.

    flops_per_token: of the model, see `flops_per_token`; or 6 * parameters, as a plain number. With
    flops_per_token(..., recompute="full") the result is the hardware's utilisation, called HFU.
    peak_flops_per_s: of one device, in the precision that is used, without sparsity.
    TypeError for a number of parameters in place of operations. ValueError for more than the peak,
    which means that a number is wrong, often the peak or a factor of 2.
    """
    arguments.number(
        "tokens_per_s", tokens_per_s, "give the tokens of all devices in a second", above=0
    )
    of_token, is_hardwares = _operations(flops_per_token)
    arguments.number("flops_per_token", of_token, "a token takes operations", above=0)
    arguments.number("peak_flops_per_s", peak_flops_per_s, "give the peak of one device", above=0)
    num_devices = arguments.counted("num_devices", num_devices)
    share = tokens_per_s * of_token / (num_devices * peak_flops_per_s)
    if share > 1:
        raise ValueError(
            f"{share:.3g} times the peak: {number_text(tokens_per_s)} tokens/s are more than "
            f"{num_devices} devices can do; is peak_flops_per_s of one device, and dense?"
        )
    return Result(
        share,
        "share",
        "HFU" if is_hardwares else "MFU",
        "tokens/s * FLOPs per token / (n * peak)",
        f"{tokens_per_s:.4g} * {of_token:.4g} / ({num_devices} * {peak_flops_per_s:.4g})",
        convention="dense peak of one device; what is recomputed is "
        + ("counted: the model's own utilisation is lower" if is_hardwares else "not counted"),
        source="Chowdhery et al., arXiv:2204.02311, appendix B",
    )


def _operations(flops_per_token: float | Result) -> tuple[float, bool]:
    """Return a token's operations, and whether some of them are recomputed ones."""
    if not isinstance(flops_per_token, Result):
        return number_of(flops_per_token, "flops_per_token", "FLOP"), False
    if flops_per_token.dimension == "parameters":
        raise TypeError(
            f"flops_per_token={flops_per_token}: parameters are no operations; give "
            "calc.flops_per_token(...), or 6 * parameters as a plain number: "
            "6 * float(calc.num_parameters(...))"
        )
    is_hardwares = RECOMPUTED in flops_per_token.parts
    return number_of(flops_per_token, "flops_per_token", "FLOP"), is_hardwares


def training_days(
    tokens: float,
    num_params: float | Result,
    num_devices: int,
    achieved_flops_per_s: float,
    recompute: str = "none",
) -> Result:
    """Return the time of training: 6 T P / (n X); recompute="full": 8 T P / (n X), as published.

    achieved_flops_per_s: of one device, as measured, recomputation included if there is any.
    round(training_days(300e9, 175e9, 1024, 140e12, "full").to("days"), 1) == 33.9
    TypeError and ValueError as in `training_flops`, and for num_devices below 1.
    """
    arguments.number(
        "achieved_flops_per_s", achieved_flops_per_s, "give what one device achieves", above=0
    )
    num_devices = arguments.counted("num_devices", num_devices)
    work = training_flops(num_params, tokens, recompute)
    arguments.number(
        "num_params", float(num_params), "a model has thousands: 405e9 for 405 billion", least=1000
    )
    factor = work.formula.partition(" ")[0]
    return Result(
        work.value / (num_devices * achieved_flops_per_s),
        "seconds",
        "time of training",
        f"{factor} T P / (n X)",
        f"{factor} * {tokens:.4g} * {float(num_params):.4g} / "
        f"({num_devices} * {achieved_flops_per_s:.4g})",
        convention=f"recompute={recompute!r}; no interruptions",
        source="Narayanan et al., arXiv:2104.04473, equation 4",
    )

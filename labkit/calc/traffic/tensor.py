"""Traffic of tensor parallelism for one microbatch and rank. Every sum of a layer has B*T*D
numbers.

    collectives                 forward                     backward
    embedding                   1 sum                       (1 gather)
    each layer                  2 sums (2 gathers)          2 sums (4 gathers)
    head                        (1 gather)                  1 sum (1 gather)
    loss                        2 all-reduces, 3 numbers for each token
    norms, positions                                        (1 all-reduce of all)
    copied key-value heads                                  1 all-reduce for each layer, among the
                                                            t/G ranks that hold a head

Without sequence parallelism a sum is an all-reduce, 2(n-1)/n of its bytes, and the entries in
brackets do not exist. With it a sum is a reduce-scatter and a gather an all-gather, (n-1)/n each,
which is as many bytes in forward. In backward a column layer gathers its input again, since each
rank kept only its own tokens. So a layer sends 10 halves instead of 8.

Papers: Megatron-LM, arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, 4.2.2.
"""

from __future__ import annotations

from math import gcd

from labkit import arguments
from labkit.calc.models import ModelConfig, model, sequence_length
from labkit.calc.parameters import norm_parameters
from labkit.calc.result import Result, total_bytes

_SOURCE = "Megatron-LM, arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198"


def tensor_parallel_collectives(
    layers: int, sequence_parallel: bool = False, *, kv_copies: int = 1
) -> dict[str, dict[str, int]]:
    """Count a rank's calls of each collective for one microbatch, forward and backward.

    kv_copies: ranks that hold the same key-value heads. If more than one, each layer sums the
    copies' gradients.
    tensor_parallel_collectives(1)["forward"] == {"all_reduce": 5}, two of them the loss's
    """
    L = arguments.counted("layers", layers)
    of_copies = L if arguments.counted("kv_copies", kv_copies) > 1 else 0
    if not sequence_parallel:
        return {
            "forward": {"all_reduce": 1 + 2 * L + 2},
            "backward": {"all_reduce": 2 * L + 1 + of_copies},
        }
    return {
        "forward": {"reduce_scatter": 1 + 2 * L, "all_gather": 2 * L + 1, "all_reduce": 2},
        "backward": {
            "reduce_scatter": 2 * L + 1,
            "all_gather": 1 + 4 * L + 1,
            "all_reduce": 1 + of_copies,
        },
    }


def tensor_parallel_traffic_bytes(
    config: ModelConfig | str,
    microbatch: int,
    tp: int,
    *,
    sequence: int | None = None,
    itemsize: int = 2,
    sequence_parallel: bool = False,
) -> Result:
    """Return the bytes that one rank sends for one microbatch, forward and backward, by part.

    microbatch: sequences. sequence: tokens of each; None: the model's context. itemsize: bytes of
    an activation. With sequence parallelism tokens are padded to a multiple of tp.
    ValueError for ranks that cannot share the heads evenly, and for models with experts or latent
    attention, whose layers send other sums.
    """
    config = model(config)
    if config.num_experts or config.is_latent:
        raise ValueError(
            "layers with experts or latent attention send other sums; give a dense model"
        )
    n, b = arguments.counted("tp", tp), arguments.counted("itemsize", itemsize)
    tokens = arguments.counted("microbatch", microbatch) * sequence_length(config, sequence)
    parts = _sums_of_features(config, tokens, n, b, sequence_parallel)
    parts |= _of_parameters(config, n, b, sequence_parallel)
    parts["loss"] = _all_reduced(3 * tokens, max(b, 4), n)
    return total_bytes(
        "sent by one rank for a microbatch",
        parts,
        formula="halves * (n-1)/n * B T D * bytes, and what is small",
        convention=f"rings; {tokens:,} tokens, {b} B numbers, "
        f"sequence_parallel={sequence_parallel}; nothing recomputed",
        source=_SOURCE,
    )


def _sums_of_features(
    config: ModelConfig, tokens: int, n: int, b: int, sequence_parallel: bool
) -> dict[str, tuple[float, str]]:
    """Return bytes of sums by halves: an all-reduce is two, a reduce-scatter or all-gather one."""
    L, D = config.layers, config.hidden
    rows = -(-tokens // n) * n if sequence_parallel else tokens
    halves = {
        "embedding": 2,
        "layers, forward": 4 * L,
        "layers, backward": (6 if sequence_parallel else 4) * L,
        "head": 3 if sequence_parallel else 2,
    }
    return {
        name: (num * (n - 1) / n * rows * D * b, f"{num} * {n - 1}/{n} * {rows:,} * {D:,} * {b} B")
        for name, num in halves.items()
    }


def _of_parameters(
    config: ModelConfig, n: int, b: int, sequence_parallel: bool
) -> dict[str, tuple[float, str]]:
    """Return the bytes for gradients of parameters that several ranks hold and use differently."""
    L, D, parts = config.layers, config.hidden, {}
    if (copies := _kv_copies(config, n)) > 1:
        numbers = L * 2 * D * config.features_per_head  # a head of keys, and one of values
        parts["copied key-value heads"] = _all_reduced(numbers, b, copies)
    if sequence_parallel:
        numbers = (2 * L + 1) * norm_parameters(config)
        numbers += 2 * L * D if config.has_bias("out") else 0  # biases of the row layers
        numbers += config.context * D if config.learned_positions else 0
        parts["norms, positions"] = _all_reduced(numbers, b, n)
    return parts


def _kv_copies(config: ModelConfig, n: int) -> int:
    """Return ranks that hold the same key-value heads. ValueError for an uneven split of heads."""
    H, G = config.heads, config.num_kv_heads
    divisors = [each for each in range(1, H + 1) if H % each == 0]
    choices = [each for each in divisors if G % each == 0 or each % G == 0]
    if n not in choices:
        raise ValueError(
            f"tp={n} cannot share {H} heads with {G} key-value heads evenly; give "
            f"{', '.join(map(str, choices))}"
        )
    return n // gcd(n, G)


def two_layers_traffic_bytes(
    tokens: int,
    hidden: int,
    ffn: int,
    tp: int,
    *,
    itemsize: int = 2,
    row_first: bool = False,
    gated: bool = False,
) -> Result:
    """Return the bytes that a rank sends for an MLP's two layers, forward and backward.

    The paper's order, a column layer and then a row layer: a sum of D features forward, and one
    backward. row_first: sums of the F features in between, forward and backward; and the input's
    gradient and the output, cut by features, are gathered. With F = 4 D, 4.5 times as much.

    gated: two matrices from D to F, as SwiGLU has. Columns first they share one sum backward, so
    nothing changes. row_first: forward needs the sums of both before they are multiplied, backward
    the sum of the product's gradient alone. With F = 8/3 D it is 4.5 times as much again, with
    Llama 3's F = 3.5 D 5.75 times.
    """
    n, b = arguments.counted("tp", tp), arguments.counted("itemsize", itemsize)
    T = arguments.counted("tokens", tokens)
    D, F = arguments.counted("hidden", hidden), arguments.counted("ffn", ffn)
    half = (n - 1) / n * T * b
    wide = 6 if gated else 4
    numbers = {"sums": wide * F, "gathers": 2 * D} if row_first else {"sums": 4 * D}
    parts = {
        name: (num * half, f"{num:,} * {n - 1}/{n} * {T:,} * {b}") for name, num in numbers.items()
    }
    return total_bytes(
        "sent by one rank for two layers",
        parts,
        formula=f"({wide} F + 2 D) (n-1)/n T b" if row_first else "4 D (n-1)/n T b",
        convention="rings; both without sequence parallelism" + gated * "; a gated MLP",
        source=_SOURCE,
    )


def _all_reduced(numel: int, itemsize: int, n: int) -> tuple[float, str]:
    sent = 2 * (n - 1) / n * numel * itemsize
    return sent, f"2 * {n - 1}/{n} * {numel:,} * {itemsize} B"

"""Bytes that a rank sends in an optimizer step: data parallelism, a pipeline, and 3D training.

Data parallelism, in multiples of the parameters:

                      one microbatch                       k microbatches
    ddp               all-reduce                     2     2         reduced once
    zero1             reduce-scatter, all-gather     2     2         reduced once
    zero2             the same, gradients sharded    2     k + 1     reduced for every microbatch
    zero3             all-gather twice, reduce-      3     3k        gathered and reduced for every
                      scatter                                        microbatch

A ring's share is (n-1)/n of each, per rank. zero2 keeps only its shard of the gradients from one
microbatch to the next, so it must reduce each; zero1 may sum them first.

A pipeline sends outputs forward and their gradients back over each boundary:

    stage s --- B*T*D numbers ---> stage s + 1        over all microbatches, whatever their number
    stage s <-- B*T*D numbers ---- stage s + 1

More microbatches send the same bytes in more messages. With v virtual stages per rank, dealt round,
there are v p - 1 boundaries instead of p - 1, and a tied embedding goes once each way between the
first rank and the last. Placed as a V, rank r has the stages r and 2p - 1 - r. That makes 2p - 2
boundaries, because the two stages in the middle are on one rank, as are both ends of a tied
embedding.

In 3D training each axis sends its usual traffic for smaller tensors:

    axis      tensors                                                       how often
    tp        the sums of this stage's layers, over this replica's rows     each microbatch
    pp        x_BTD of this replica's rows, whole on each tp rank;          each microbatch
              and this tp rank's rows of the tied embedding                 once
    dp        this rank's parameters: a stage's share                       once: ZeRO-1
    norm      one number, over all ranks, if gradients are clipped          once

So tp divides dp's bytes, pp divides those of dp and tp, and dp divides those of tp and pp. tp does
not divide pp's bytes, because its ranks hold the same x_BTD. The bytes are exact for the lab's GPT
at any dp and pp, and for a tp that divides the bytes of every sum; else each sum is rounded by a
byte.

ZeRO-1 with shards of unequal size takes two all-to-alls: rank r sends D - s_r gradients to the
owners of the other shards, and its own s_r parameters to n - 1 ranks.

Papers: Rajbhandari et al., arXiv:1910.02054, section 7, for one microbatch; Narayanan et al.,
arXiv:2104.04473, sections 2.2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from labkit import arguments
from labkit.calc.models import ModelConfig, model, sequence_length
from labkit.calc.result import Result, number_of, total, total_bytes
from labkit.calc.traffic.collective import collective
from labkit.calc.traffic.cost import chunk_numels
from labkit.calc.traffic.tensor import tensor_parallel_traffic_bytes
from labkit.calc.units import number_text


def step_traffic_bytes(
    strategy: str,
    num_params: float | Result,
    world_size: int,
    *,
    microbatches: int = 1,
    itemsize: int = 2,
    gradient_itemsize: int | None = None,
) -> Result:
    """Return the bytes that one rank sends in one optimizer step, by collective.

    strategy: "ddp", "zero1", "zero2" or "zero3". itemsize: bytes of a parameter on the wire.
    gradient_itemsize: those of a gradient; None: itemsize.
    float(step_traffic_bytes("zero3", N, n)) / (itemsize * N) == 3 (n-1)/n
    """
    microbatches = arguments.counted("microbatches", microbatches)
    strategies = _rounds(microbatches)
    if not isinstance(strategy, str) or strategy not in strategies:
        raise ValueError(f"strategy={strategy!r:.60}: give one of {', '.join(strategies)}")
    num = number_of(num_params, "num_params", "parameters")
    arguments.number("num_params", num, "0 or more", least=0)
    n = arguments.counted("world_size", world_size)
    itemsize = arguments.counted("itemsize", itemsize)
    of_gradient = itemsize
    if gradient_itemsize is not None:
        of_gradient = arguments.counted("gradient_itemsize", gradient_itemsize)
    parts = {}
    for name, times in strategies[strategy].items():
        size = itemsize if "gather" in name else of_gradient
        rounds = 2 * times if name == "all-reduce" else times
        how = f"{rounds} * {n - 1}/{n} * {number_text(num)} * {size} B"
        parts[name] = (rounds * (n - 1) / n * num * size, how)
    return total_bytes(
        f"sent by one rank of {strategy} in a step",
        parts,
        formula="times * (n-1)/n * N * bytes, by collective",
        convention=f"rings; {microbatches} microbatch{'es' * (microbatches > 1)} to a step",
        source="Rajbhandari et al., arXiv:1910.02054, section 7",
    )


def step_traffic_volume(strategy: str, microbatches: int = 1) -> Result:
    """Return the same in multiples of the parameters, for many ranks: 2, 2, 2, 3 for one
    microbatch."""
    strategies = _rounds(arguments.counted("microbatches", microbatches))
    if not isinstance(strategy, str) or strategy not in strategies:
        raise ValueError(f"strategy={strategy!r:.60}: give one of {', '.join(strategies)}")
    rounds = strategies[strategy]
    volume = sum(2 * times if name == "all-reduce" else times for name, times in rounds.items())
    return Result(
        volume,
        "",
        f"volume of {strategy}",
        substitution=" + ".join(f"{times} {name}" for name, times in rounds.items()),
        convention="in times the parameters; (n-1)/n taken as 1; an all-reduce counts twice",
        source="Rajbhandari et al., arXiv:1910.02054, section 7",
    )


def _rounds(k: int) -> dict[str, dict[str, int]]:
    """Return strategy -> collective -> number of times it goes over all parameters."""
    return {
        "ddp": {"all-reduce": 1},
        "zero1": {"reduce-scatter": 1, "all-gather": 1},
        "zero2": {"reduce-scatter": k, "all-gather": 1},
        "zero3": {"all-gather": 2 * k, "reduce-scatter": k},
    }


_PIPELINE_SOURCE = "Narayanan et al., arXiv:2104.04473, sections 2.2 and 3"


def unequal_zero1_traffic_bytes(shards: Sequence[int], rank: int, itemsize: int = 4) -> Result:
    """Return the bytes that one rank sends in a step of ZeRO-1 with shards of unequal size.

    shards: numbers of each rank. itemsize: bytes of a gradient, and of a parameter.
    ValueError for a rank that has no shard.
    """
    whole, n = sum(shards), len(shards)
    arguments.whole("rank", rank, f"a rank of {n}", least=0, most=n - 1)
    own, size = shards[rank], arguments.counted("itemsize", itemsize)
    return total_bytes(
        "sent by one rank of ZeRO-1 with unequal shards",
        {
            "gradients": ((whole - own) * size, f"({whole:,} - {own:,}) * {size} B"),
            "parameters": ((n - 1) * own * size, f"{n - 1} * {own:,} * {size} B"),
        },
        formula="(D - s) + (n - 1) s numbers",
        convention="two all-to-alls; over all ranks 2 (n - 1) D, as with equal shards",
        source="Rajbhandari et al., arXiv:1910.02054, section 5.1, for equal shards",
    )


def pipeline_traffic_bytes(
    tokens: float,
    hidden: float,
    stages: int,
    rank: int,
    itemsize: int = 2,
    *,
    virtual: int = 1,
    placement: str = "round",
    tied_vocab: float = 0,
) -> Result:
    """Return the bytes that a rank of the pipeline sends in a step, with their parts.

    tokens: of the whole batch, B * T. stages: ranks, p. virtual: stages per rank. placement:
    "round", as interleaved deals them, or "v", two per rank. tied_vocab: the rows of an embedding
    that the first and the last stage share; 0: none.
    pipeline_traffic_bytes(1024, 512, 4, rank=1) == 2 * 1024 * 512 * 2
    ValueError or TypeError for counts that are not whole and above 0.
    """
    p, v = arguments.counted("stages", stages), arguments.counted("virtual", virtual)
    rank, size = arguments.rank("rank", rank, p), arguments.counted("itemsize", itemsize)
    for name, count in (("tokens", tokens), ("hidden", hidden), ("tied_vocab", tied_vocab)):
        arguments.counted(name, count, "0 or more", least=0 if name == "tied_vocab" else 1)
    _check_placement(placement, v)
    if p == 1:  # between stages of the same rank
        outputs = gradients = 0
    elif placement == "v":  # once down the ranks and once up, except at both ends
        outputs = gradients = 2 - (rank in (0, p - 1))
    else:
        outputs, gradients = v - (rank == p - 1), v - (rank == 0)
    has_one_end = placement == "round" and p > 1 and rank in (0, p - 1)
    tied = tied_vocab if has_one_end else 0
    row = hidden * size
    parts = {
        "outputs": (float(outputs * tokens * row), f"{outputs} tokens hidden itemsize"),
        "gradients": (float(gradients * tokens * row), f"{gradients} tokens hidden itemsize"),
        "tied embedding": (float(tied * row), "vocab hidden itemsize"),
    }
    return total_bytes(
        f"pipeline traffic of rank {rank} in a step",
        parts,
        convention="sent bytes; forward, backward and the tied weight",
        source=_PIPELINE_SOURCE,
    )


def _check_placement(placement: object, virtual: int) -> None:
    if placement not in ("round", "v"):
        raise ValueError(f"placement={placement!r:.60}: give 'round' or 'v'")
    if placement == "v" and virtual != 2:
        raise ValueError(f"virtual={virtual}: a V has two stages on each rank; give virtual=2")


_COMBINED_SOURCE = "Narayanan et al., arXiv:2104.04473, section 3"
_NORM_ITEMSIZE = 8  # summed in float64


def combined_traffic_bytes(
    config: ModelConfig | str,
    num_sequences: int,
    layers: Sequence[Sequence[int]],
    at: Mapping[str, int],
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    microbatches: int = 1,
    sequence: int | None = None,
    itemsize: int = 2,
    clipped: bool = False,
) -> Result:
    """Return the bytes that a rank of 3D training sends in a step, by part: tp, pp, dp and norm.

    num_sequences: of the global batch. layers: the layers of each stage, where 0 is the embedding,
    1 and up are the blocks, and the last number is norm and head; stages are dealt round over pp.
    at: the rank's coordinates, {"dp": 0, "tp": 1, ...}; 0 if left out. microbatches: of a replica.
    sequence: tokens of each; None: the model's context. itemsize: bytes of all numbers sent.

    ValueError for models unlike the lab's GPT (biases, gated, no learned positions, untied), for
    layers that are not all of the model's in order, and for too few sequences.
    """
    config = _supported(model(config))
    place = _place(at, {"dp": dp, "tp": tp, "pp": pp})
    size = arguments.counted("itemsize", itemsize)
    m = arguments.counted("microbatches", microbatches)
    mine = _own_layers(config, layers, pp, place["pp"])
    sequences = _own_sequences(num_sequences, dp, place["dp"], m)
    tokens = sequences * sequence_length(config, sequence)
    vocab = chunk_numels(config.vocab, tp)[place["tp"]]
    over_pp = pipeline_traffic_bytes(
        tokens, config.hidden, pp, place["pp"], size, virtual=len(layers) // pp, tied_vocab=vocab
    )
    return total(
        f"sent by the rank at {', '.join(f'{axis} {where}' for axis, where in place.items())}",
        {
            "tp": _over_tp(config, mine, sequences, sequence, tp, size, m),
            "pp": over_pp,
            "dp": _over_dp(rank_parameters(config, mine, tp, place["tp"]), dp, size),
            "norm": _norm(dp * tp * pp, clipped),
        },
        convention="rings; sent bytes of a step; x_BTD between stages whole on every tp rank",
        source=_COMBINED_SOURCE,
    )


def rank_parameters(config: ModelConfig, mine: Sequence[int], tp: int, tp_rank: int) -> int:
    """Return a rank's number of parameters: its tp share of these layers. A tied weight counts
    once.

    Uneven shares follow torch.tensor_split: the first ones are a row longer.
    """
    D, K, last = config.hidden, config.features_per_head, config.layers + 1
    blocks = sum(0 < layer < last for layer in mine)
    vocab = chunk_numels(config.vocab, tp)[tp_rank]
    ffn = chunk_numels(config.mlp_features, tp)[tp_rank]
    heads, kv_heads = config.heads // tp, max(1, config.num_kv_heads // tp)
    block = 2 * D * heads * K + 2 * D * kv_heads * K + 2 * D * ffn + 2 * D
    count = blocks * block
    count += vocab * D if 0 in mine or last in mine else 0
    count += config.context * D if 0 in mine else 0
    return count + (D if last in mine else 0)


def _over_tp(
    config: ModelConfig,
    mine: Sequence[int],
    sequences: int,
    sequence: int | None,
    tp: int,
    itemsize: int,
    microbatches: int,
) -> Result:
    """Return tp's bytes, which grow with the tokens, not with the number of microbatches."""
    last = config.layers + 1
    blocks = sum(0 < layer < last for layer in mine)
    alone = replace(config, layers=max(1, blocks))
    whole = tensor_parallel_traffic_bytes(
        alone, sequences, tp, sequence=sequence, itemsize=itemsize
    )
    parts = {"none": Result(0.0, "bytes", "none")}
    if 0 in mine:
        parts["embedding"] = whole["embedding"]
    if blocks:
        parts |= {name: part for name, part in whole.parts.items() if "layers" in name}
        if "copied key-value heads" in whole.parts:
            parts["copied key-value heads"] = microbatches * whole["copied key-value heads"]
    if last in mine:
        parts |= {"head": whole["head"], "loss": whole["loss"]}
    return total("over tp", parts, source=whole.source)


def _over_dp(numel: int, dp: int, itemsize: int) -> Result:
    """Return dp's bytes: ZeRO-1's reduce-scatter and all-gather, padded to a multiple of dp."""
    filled = -(-numel // dp) * dp
    sent = collective("reduce_scatter", "ring", dp, filled * itemsize).sent_bytes
    how = f"{dp - 1}/{dp} * {filled:,} * {itemsize} B"
    parts = dict.fromkeys(("reduce-scatter", "all-gather"), (sent, how))
    return total_bytes("over dp", parts, formula="2 (n-1)/n N itemsize", source="arXiv:1910.02054")


def _norm(num_ranks: int, clipped: bool) -> Result:
    sent = (
        round(collective("all_reduce", "ring", num_ranks, _NORM_ITEMSIZE).sent_bytes)
        if clipped
        else 0
    )
    return Result(float(sent), "bytes", "norm", substitution=f"one number, {num_ranks} ranks")


def _supported(config: ModelConfig) -> ModelConfig:
    if config.biases or config.gated or not config.learned_positions:
        raise ValueError(
            "biases, gated MLPs and rotated positions are not counted here; give the lab's form of "
            "GPT, ModelConfig(biases=False, ...)"
        )
    if not config.tied:
        raise ValueError("an untied head has its own weight, which is not counted here; tie it")
    return config


def _place(at: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Check the sizes of the axes, and return the coordinate along each of them."""
    checked = {axis: arguments.counted(axis, size) for axis, size in sizes.items()}
    if unknown := at.keys() - checked.keys():
        raise ValueError(f"at={dict(at)!r} has {min(unknown)!r}; give coordinates by dp, tp and pp")
    return {axis: arguments.rank(axis, at.get(axis, 0), size) for axis, size in checked.items()}


def _own_sequences(num_sequences: int, dp: int, rank: int, microbatches: int) -> int:
    """Return the sequences of the replica, at least one for each microbatch."""
    own = chunk_numels(arguments.counted("num_sequences", num_sequences), dp)[rank]
    if own < microbatches:
        raise ValueError(
            f"num_sequences={num_sequences} over dp={dp} leave {own} for {microbatches} "
            f"microbatches; give {dp * microbatches} or more"
        )
    return own


def _own_layers(
    config: ModelConfig, layers: Sequence[Sequence[int]], pp: int, rank: int
) -> list[int]:
    """Return the layers of the stages that the rank holds."""
    found = [layer for each in layers for layer in each]
    if found != list(range(config.layers + 2)) or not layers or len(layers) % pp:
        raise ValueError(
            f"layers={list(layers)!r:.80}: give each stage's, all of 0 (embedding) to "
            f"{config.layers + 1} (norm and head) in order, and a multiple of pp={pp} stages"
        )
    return [layer for stage in range(rank, len(layers), pp) for layer in layers[stage]]

"""A layout for 512 GPUs.

An interviewer asks: "You have 512 GPUs of 80 GB, and are to train a model of 175 billion
parameters. Which parallelism do you use, and how much of each? Show that it fits. A colleague
suggests data 64, tensor 4, pipeline 2. What do you say?" The next one has another model, and 64.

Write two functions, of tasks and layouts that are dicts.

    task    num_params of the model; layer_params of one layer; table_params, embedding and learned
            positions
            layers, hidden, heads, kv_heads, ffn, vocab, sequence; gated: three matrices in an MLP
            parameter_bytes, gradient_bytes, optimizer_bytes (a master copy in it), per parameter
            num_gpus, gpus_per_node, memory_bytes (of one GPU, what training may fill)
            global_batch   sequences in a step
            flops_per_s    of one GPU, while it multiplies matrices
            fast_bytes_per_s, slow_bytes_per_s   of one GPU, to others in its node, in other nodes
    layout  tp, pp; virtual (stages on each rank of the pipeline: more than 1 is interleaved);
            zero, 0 to 3, over dp = num_gpus / (tp pp); microbatch, in sequences;
            recompute, "none" or "full"

    layout(task)
        returns  a layout that uses all GPUs, fits, and needs no more than 1.2 times the seconds of
                 the planner's fastest
    why_not(task, given)
        returns  (name, bytes) for a layout, of the first rank of the pipeline: the largest of its
                 "parameters", "gradients", "optimizer" and "activations", and the bytes of
                 parameters and gradients together

Rules     tp divides gpus_per_node, so that no tensor-parallel group crosses nodes; it also divides
          heads, kv_heads and ffn. pp * virtual divides layers. dp * microbatch divides global_batch
          into m microbatches. Where virtual > 1, pp is more than 1 and divides m
States    N parameters on each GPU of the first rank of the pipeline: (layer_params layers / pp +
          table_params) / tp. On the last are about as many, with the head. pp 1: num_params / tp
          Over dp zero 1 shards the optimizer's bytes, zero 2 gradients as well, zero 3 parameters
          as well; zero 0 nothing
Kept      bytes of a layer's activations for each token of a microbatch, 2-byte numbers, flash
          attention, sequence parallelism; g = kv_heads / heads:
              (12 + 4 g) hidden + 4 heads + 4 ffn (6 ffn if gated), all / tp; "full": 2 hidden / tp
          of layers / pp layers, times the microbatches in flight, at most m:
              first rank  pp, interleaved pp + (pp - 1) / virtual
              last rank   pp - (pp - 1) / virtual, and 14 bytes / tp for each word and token
          "full" holds one layer more, as "none" keeps it, while it computes it again
Whole     for a moment, if dp > 1, / tp. zero 2: gradients of a layer, or of vocab * hidden if that
          is more; interleaved: of a stage. zero 3: parameters and gradients of two layers and of
          vocab * hidden, twice that where pp is 1
Seconds   of a microbatch on the last rank: 6 FLOPs for each token and parameter of its layers and
          of vocab * hidden, / tp; for each layer 8 times 2 hidden (tp - 1) / tp bytes a token over
          fast links. "full": layers 4/3 of the FLOPs, and 12 times. In all
              m * that + (pp - 1) / virtual of what its layers take of it
          + what dp exchanges, over slow links, of which each of the n ranks of dp in a node takes
            1 / n, and four fifths hide: N times gradient_bytes (zero 0 twice, zero 1 once, zero 2
            and 3 in each microbatch, that is w = m + (pp - 1) / virtual times; zero 2 interleaved
            w / pp times), parameter_bytes (zero 1 and 2 once, zero 3 2 w times)

That is less than the planner counts, and enough: leave a margin of a twentieth of the memory.

Contract
    never    labkit.calc. A few thousand layouts can all be tried

Papers: Narayanan et al., arXiv:2104.04473, section 3; Korthikanti et al., arXiv:2205.05198;
Rajbhandari et al., arXiv:1910.02054.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any


def layout(task: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest that fits, by the model above."""
    ### BEGIN SOLUTION
    room = 0.95 * task["memory_bytes"]
    fitting = [each for each in _layouts(task) if _bytes(task, each) <= room]
    return min(fitting, key=lambda each: _seconds(task, each))


def _layouts(task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All that the rules allow."""
    cut = ("gpus_per_node", "heads", "kv_heads", "ffn")
    tensor = [tp for tp in (1, 2, 4, 8) if all(task[name] % tp == 0 for name in cut)]
    for tp, pp, microbatch in product(tensor, _divisors(task["layers"]), (1, 2, 4, 8)):
        dp = task["num_gpus"] // (tp * pp)
        if task["num_gpus"] % (tp * pp) or task["global_batch"] % (dp * microbatch):
            continue
        rounds = pp > 1 and task["global_batch"] // (dp * microbatch) % pp == 0
        stages = _divisors(task["layers"] // pp) if rounds else [1]
        for virtual, zero, recompute in product(stages, (1, 2, 3), ("none", "full")):
            yield {
                "tp": tp, "pp": pp, "virtual": virtual,
                "zero": zero, "microbatch": microbatch, "recompute": recompute,
            }  # fmt: skip


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _ranks(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[int, int]:
    """(dp, microbatches of a rank)"""
    dp = task["num_gpus"] // (given["tp"] * given["pp"])
    return dp, task["global_batch"] // (dp * given["microbatch"])


def _own(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Parameters on a GPU of the first rank; on the last are about as many."""
    if given["pp"] == 1:
        return task["num_params"] / given["tp"]
    layers = task["layers"] / given["pp"] * task["layer_params"]
    return (layers + task["table_params"]) / given["tp"]


def _states(task: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, float]:
    """By part: first what zero 1 shards, last what zero 3 does."""
    dp, _ = _ranks(task, given)
    own = _own(task, given)
    return {
        name: own * task[f"{of}_bytes"] / (dp if given["zero"] >= level else 1)
        for name, of, level in (
            ("optimizer", "optimizer", 1),
            ("gradients", "gradient", 2),
            ("parameters", "parameter", 3),
        )
    }


def _layer_bytes(task: Mapping[str, Any], given: Mapping[str, Any], recompute: str) -> float:
    """One layer's activations of one microbatch."""
    of_a_token = 2 * task["hidden"]
    if recompute == "none":
        of_a_token = (12 + 4 * task["kv_heads"] / task["heads"]) * task["hidden"]
        of_a_token += 4 * task["heads"] + (6 if task["gated"] else 4) * task["ffn"]
    return given["microbatch"] * task["sequence"] * of_a_token / given["tp"]


def _activations(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[float, float]:
    """(of the first rank, of the last rank), without the head."""
    p, v, (_, m) = given["pp"], given["virtual"], _ranks(task, given)
    kept = task["layers"] / p * _layer_bytes(task, given, given["recompute"])
    first = p + (p - 1) / v if v > 1 else p
    return min(first, m) * kept, min(p - (p - 1) / v, m) * kept


def _whole(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """What ZeRO has whole for a moment."""
    if given["zero"] < 2 or _ranks(task, given)[0] == 1:
        return 0.0
    layer, table = task["layer_params"], task["vocab"] * task["hidden"]
    if given["zero"] == 2:
        at_once = task["layers"] / (given["pp"] * given["virtual"]) if given["virtual"] > 1 else 1
        return max(at_once * layer, table) * task["gradient_bytes"] / given["tp"]
    tables = 2 if given["pp"] == 1 else 1
    each = task["parameter_bytes"] + task["gradient_bytes"]
    return (tables * table + 2 * layer) * each / given["tp"]


def _bytes(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Of the fuller of the first rank and the last."""
    first, last = _activations(task, given)
    tokens = given["microbatch"] * task["sequence"]
    head = 14 * tokens * task["vocab"] / given["tp"]
    again = _layer_bytes(task, given, "none") if given["recompute"] == "full" else 0.0
    return (
        sum(_states(task, given).values()) + max(first, last + head) + again + _whole(task, given)
    )


def _seconds(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Of a step."""
    p, t, v, (dp, m) = given["pp"], given["tp"], given["virtual"], _ranks(task, given)
    is_full = given["recompute"] == "full"
    tokens = given["microbatch"] * task["sequence"]
    work = 6 * tokens / t / task["flops_per_s"]
    halves = (12 if is_full else 8) * 2 * task["hidden"] * tokens * (t - 1) / t
    of_layer = work * task["layer_params"] * (4 / 3 if is_full else 1)
    of_layers = task["layers"] / p * (of_layer + halves / task["fast_bytes_per_s"])
    head = work * task["vocab"] * task["hidden"]
    w = m + (p - 1) / v
    reduces, gathers = {
        0: (2, 0),
        1: (1, 1),
        2: (w / p if v > 1 else w, 1),
        3: (w, 2 * w),
    }[given["zero"]]
    exchanged = _own(task, given) * (
        reduces * task["gradient_bytes"] + gathers * task["parameter_bytes"]
    )
    neighbours = min(dp, task["gpus_per_node"] // t)
    wire = exchanged * (dp - 1) / dp / neighbours / task["slow_bytes_per_s"] / 5
    return m * (of_layers + head) + (p - 1) / v * of_layers + wire
    ### END SOLUTION


def why_not(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, float]:
    """The largest part of the first rank, and its bytes of parameters and gradients."""
    ### BEGIN SOLUTION
    parts = _states(task, given) | {"activations": _activations(task, given)[0]}
    largest = max(parts, key=parts.__getitem__)
    return largest, parts["parameters"] + parts["gradients"]
    ### END SOLUTION

"""Choose a layout for 512 GPUs.

An interviewer asks: "You have 512 GPUs of 80 GB, and are to train a model of 175 billion
parameters. Which parallelism do you use, and how much of each? Show that it fits. A colleague
suggests data 64, tensor 4, pipeline 2. What do you say?" The next interviewer has another model and
64 GPUs.

Write two functions. Tasks and layouts are dicts.

    task    num_params of the model, layer_params of one layer, table_params of the token embedding
            together with learned positions
            layers, hidden, heads, kv_heads, ffn, vocab, sequence
            gated           True: an MLP has three matrices. False: two
            parameter_bytes, gradient_bytes, optimizer_bytes   per parameter. optimizer_bytes
                            include the master copy
            num_gpus, gpus_per_node
            memory_bytes    of one GPU that training may fill
            global_batch    sequences per step
            flops_per_s     of one GPU while it multiplies matrices
            fast_bytes_per_s, slow_bytes_per_s   of one GPU, to GPUs in its node and in other nodes
    layout  tp              ranks of tensor parallelism, with sequence parallelism
            pp              ranks of the pipeline
            virtual         stages per rank of the pipeline. More than 1 is interleaved
            zero            ZeRO level, 0 to 3, over the dp = num_gpus / (tp * pp) ranks
            microbatch      sequences per microbatch
            recompute       "none" or "full"

    layout(task)
        returns  a layout that keeps the rules, fits into memory, and takes at most 1.2 times the
                 seconds of the fastest one that labkit's planner finds
    why_not(task, given)
        returns  (name, bytes) for the GPUs of the first pipeline rank. name is the largest of its
                 "parameters", "gradients", "optimizer" and "activations", as defined below. bytes
                 are those of parameters and gradients together, to a relative error of 0.0001

layout is graded by the planner, which counts in more detail than the model below. Choose the
fastest layout by this model, and leave a twentieth of memory_bytes free. Then it is fast enough and
fits.

Rules
    tp divides gpus_per_node, so that all ranks of a tensor-parallel group are in one node. tp also
    divides heads, kv_heads and ffn. tp * pp divides num_gpus. pp * virtual divides layers.
    dp * microbatch divides global_batch. The quotient is m, the microbatches per step of one rank.
    m may be less than pp. If virtual > 1, then pp > 1 and pp divides m.

Parameters, gradients and optimizer
    N parameters on one GPU: (layer_params * layers / pp + table_params) / tp. This is exact for the
    first pipeline rank and about right for the last rank, which has the head. If pp is 1, N is
    num_params / tp.
    Bytes of each: N * optimizer_bytes, N * gradient_bytes and N * parameter_bytes. ZeRO divides by
    dp: the optimizer's bytes from level 1 on, gradients from level 2 on, parameters at level 3.

Activations, for numbers of 2 bytes and with flash attention
    One token in one layer keeps A bytes:
        "none"  ((12 + 4 * kv_heads / heads) * hidden + 4 * heads + 4 * ffn) / tp
                with 6 * ffn if gated
        "full"  2 * hidden / tp
    "activations" = A * (microbatch * sequence tokens) * (layers / pp) * (microbatches in flight).
    This holds for every pp. In flight are at most m microbatches, and otherwise
        on the first rank  pp;  if virtual > 1: pp + (pp - 1) / virtual
        on the last rank   pp - (pp - 1) / virtual

More memory, which does not count as "activations"
    The last rank keeps the logits of one microbatch: 14 * vocab / tp bytes per token. If pp is 1,
    the only rank is first and last.
    "full" also keeps A of "none" for one layer and one microbatch, while it computes it again.
    If dp > 1, ZeRO has some tensors whole for a moment. With table = vocab * hidden, which is
    table_params without learned positions:
        level 2  gradients of layer_params or of table, whichever is more. If virtual > 1, take all
                 layers of one stage instead of one layer. All / tp
        level 3  parameters and gradients of 2 * layer_params + table, or of
                 2 * layer_params + 2 * table if pp is 1. All / tp

Seconds of a step: m * (blocks + head) + (pp - 1) / virtual * blocks + exchange
    blocks    one microbatch through the layers / pp layers of a rank. Each layer takes
                  6 * tokens * layer_params / tp FLOPs; 4/3 of that for "full"
                  8 * 2 * hidden * tokens * (tp - 1) / tp bytes over fast links; 12 instead of 8
                  for "full"
    head      6 * tokens * vocab * hidden / tp FLOPs
    exchange  N * (r * gradient_bytes + g * parameter_bytes) * (dp - 1) / dp bytes over slow links.
              All ranks of a dp group in one node, min(dp, gpus_per_node / tp) of them, share these
              bytes. Four fifths of the time are hidden behind computing. So divide the seconds by
              the number of these ranks and by 5. With w = m + (pp - 1) / virtual:
                  zero   0    1    2                          3
                  r      2    1    w; w / pp if virtual > 1   w
                  g      0    1    1                          2 * w

Contract
    task, given  stay as they are
    never        labkit.calc. You can try all of the few thousand layouts

Papers: Narayanan et al., arXiv:2104.04473, section 3; Korthikanti et al., arXiv:2205.05198;
Rajbhandari et al., arXiv:1910.02054.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any


def layout(task: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the fastest layout that fits, by the model above."""
    ### BEGIN SOLUTION
    room = 0.95 * task["memory_bytes"]
    fitting = [each for each in _layouts(task) if _bytes(task, each) <= room]
    return min(fitting, key=lambda each: _seconds(task, each))


def _layouts(task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """List all layouts that the rules allow."""
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
    """Compute (dp, m)."""
    dp = task["num_gpus"] // (given["tp"] * given["pp"])
    return dp, task["global_batch"] // (dp * given["microbatch"])


def _own(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Count the parameters on one GPU."""
    if given["pp"] == 1:
        return task["num_params"] / given["tp"]
    layers = task["layers"] / given["pp"] * task["layer_params"]
    return (layers + task["table_params"]) / given["tp"]


def _states(task: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, float]:
    """Count the bytes of optimizer, gradients and parameters on one GPU."""
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
    """Count the activations of one layer and one microbatch."""
    of_a_token = 2 * task["hidden"]
    if recompute == "none":
        of_a_token = (12 + 4 * task["kv_heads"] / task["heads"]) * task["hidden"]
        of_a_token += 4 * task["heads"] + (6 if task["gated"] else 4) * task["ffn"]
    return given["microbatch"] * task["sequence"] * of_a_token / given["tp"]


def _activations(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[float, float]:
    """Count the activations of the first and of the last pipeline rank, without the head."""
    p, v, (_, m) = given["pp"], given["virtual"], _ranks(task, given)
    kept = task["layers"] / p * _layer_bytes(task, given, given["recompute"])
    first = p + (p - 1) / v if v > 1 else p
    return min(first, m) * kept, min(p - (p - 1) / v, m) * kept


def _whole(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Count the bytes that ZeRO has whole for a moment."""
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
    """Count the bytes of the fuller of the first and the last rank."""
    first, last = _activations(task, given)
    tokens = given["microbatch"] * task["sequence"]
    head = 14 * tokens * task["vocab"] / given["tp"]
    again = _layer_bytes(task, given, "none") if given["recompute"] == "full" else 0.0
    return (
        sum(_states(task, given).values()) + max(first, last + head) + again + _whole(task, given)
    )


def _seconds(task: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Estimate the seconds of a step."""
    p, t, v, (dp, m) = given["pp"], given["tp"], given["virtual"], _ranks(task, given)
    is_full = given["recompute"] == "full"
    tokens = given["microbatch"] * task["sequence"]
    work = 6 * tokens / t / task["flops_per_s"]
    sent = (12 if is_full else 8) * 2 * task["hidden"] * tokens * (t - 1) / t
    of_layer = work * task["layer_params"] * (4 / 3 if is_full else 1)
    blocks = task["layers"] / p * (of_layer + sent / task["fast_bytes_per_s"])
    head = work * task["vocab"] * task["hidden"]
    w = m + (p - 1) / v
    reduces, gathers = {
        0: (2, 0),
        1: (1, 1),
        2: (w / p if v > 1 else w, 1),
        3: (w, 2 * w),
    }[given["zero"]]
    num_bytes = _own(task, given) * (
        reduces * task["gradient_bytes"] + gathers * task["parameter_bytes"]
    )
    in_node = min(dp, task["gpus_per_node"] // t)
    exchange = num_bytes * (dp - 1) / dp / in_node / task["slow_bytes_per_s"] / 5
    return m * (blocks + head) + (p - 1) / v * blocks + exchange
    ### END SOLUTION


def why_not(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, float]:
    """Find the largest part of the first rank, and its bytes of parameters and gradients."""
    ### BEGIN SOLUTION
    parts = _states(task, given) | {"activations": _activations(task, given)[0]}
    largest = max(parts, key=parts.__getitem__)
    return largest, parts["parameters"] + parts["gradients"]
    ### END SOLUTION

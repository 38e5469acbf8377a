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
    raise NotImplementedError("not attempted yet: your code replaces this line")


def why_not(task: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, float]:
    """The largest part of the first rank, and its bytes of parameters and gradients."""
    raise NotImplementedError("not attempted yet: your code replaces this line")

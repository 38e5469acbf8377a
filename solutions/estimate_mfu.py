"""Compute model FLOPs utilisation from a model and a line of a training log.

An interviewer asks: "8 H100 train Llama 3 8B with sequences of 8,192 tokens: 6,400 tokens a second
on each of them, with full recomputation. The data sheet says 1,979 TFLOP/s. What is your MFU? What
is the HFU? What do you count, and what not?"

Write three functions.

    model  a dict, a decoder-only transformer without biases:
               layers, hidden, vocab
               heads      query heads, each with head_dim features. heads * head_dim need not be
                          hidden
               head_dim   features per head, of queries, keys and values
               kv_heads   key heads, and as many value heads
               ffn        features inside the MLP
               gated      True: the MLP has three matrices, as in SwiGLU. False: two
               tied       True: the head uses the matrix of the token embedding. False: the head has
                          its own matrix. The head multiplies in both cases
               context    the longest sequence that the model supports
    run    a dict, from the log of a training run:
               sequence       tokens per sequence in this run
               tokens_per_s   as logged
               logged_by      "device": tokens_per_s is the rate of one device. "job": the rate of
                              all devices together
               num_devices
               peak           FLOP/s of one device in the run's precision, from its data sheet
               sparsity       True: peak is the number "with sparsity", twice the dense peak. False:
                              peak is the dense peak
               recompute      what backward computes again: "none"; "full": the whole forward, all
                              layers and the head; "selective": the scores of attention and their
                              product with the values

    flops_per_token(model, sequence)
        returns  the model's operations for one token, forward and backward. A multiplication and an
                 addition count as two operations
    mfu(model, run)
        returns  the model's operations per second, divided by the dense peak of all devices: 0.4,
                 not 40
    hfu(model, run)
        returns  the same for all operations that the devices do. They include recomputed ones

Count as in appendix B of PaLM. The matrices of attention, MLP and head count. The lookup in the
embedding table does not. The scores of attention and their product with the values count for every
pair of tokens in a sequence, including pairs that a causal mask hides.

Contract
    model, run  stay as they are
    returns     numbers, correct to a relative error of 0.001. Norms are below that, so you may
                count them or not
    never       labkit.calc. The answer takes a few lines

Papers: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B; Korthikanti et al., arXiv:2205.05198,
section 5, for selective recomputation.
"""

from collections.abc import Mapping
from typing import Any


def flops_per_token(model: Mapping[str, Any], sequence: int) -> float:
    """Count the model's operations for one token, forward and backward."""
    ### BEGIN SOLUTION
    # Backward takes twice as many as forward: gradients of the inputs and of the weights.
    return 3 * (_forward_of_matrices(model) + _forward_of_scores(model, sequence))


def _forward_of_matrices(model: Mapping[str, Any]) -> float:
    """Count two operations per weight."""
    # One matrix each for queries, output, keys and values.
    attention = 2 * model["hidden"] * model["head_dim"] * (model["heads"] + model["kv_heads"])
    mlp = (3 if model["gated"] else 2) * model["hidden"] * model["ffn"]
    return 2 * (model["layers"] * (attention + mlp) + model["hidden"] * model["vocab"])


def _forward_of_scores(model: Mapping[str, Any], sequence: int) -> float:
    """Count products of queries with keys, and of scores with values."""
    return 2 * 2 * model["layers"] * model["heads"] * model["head_dim"] * sequence
    ### END SOLUTION


def mfu(model: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """Divide the model's operations per second by the dense peak."""
    ### BEGIN SOLUTION
    return flops_per_token(model, run["sequence"]) * _tokens_per_peak_flop(run)


def _tokens_per_peak_flop(run: Mapping[str, Any]) -> float:
    devices = run["num_devices"]
    tokens_per_s = run["tokens_per_s"] * (devices if run["logged_by"] == "device" else 1)
    return tokens_per_s / (devices * run["peak"] / (2 if run["sparsity"] else 1))
    ### END SOLUTION


def hfu(model: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """Divide all operations per second by the dense peak."""
    ### BEGIN SOLUTION
    again = 0.0
    if run["recompute"] != "none":
        again += _forward_of_scores(model, run["sequence"])
    if run["recompute"] == "full":
        again += _forward_of_matrices(model)
    operations = flops_per_token(model, run["sequence"]) + again
    return operations * _tokens_per_peak_flop(run)
    ### END SOLUTION

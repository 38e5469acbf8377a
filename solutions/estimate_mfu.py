"""Model FLOPs utilisation from a configuration and a line of a training log.

An interviewer asks: "8 H100 train Llama 3 8B with sequences of 8,192 tokens: 6,400 tokens a second
on each of them, with full recomputation. The data sheet says 1,979 TFLOP/s. What is your MFU? What
is the HFU? What do you count, and what not?"

Write three functions.

    model  a dict. A decoder-only transformer without biases:
               layers, hidden, vocab
               heads      of queries, each with head_dim features; heads * head_dim may differ from
                          hidden
               kv_heads   of keys, and of values, each with head_dim features
               ffn        features inside the MLP
               gated      True: three matrices in it, as in SwiGLU; False: two
               tied       True: the head is the table of the token embedding; False: a matrix of
                          its own. Either way it multiplies
               context    the longest sequence that the model is made for
    run    a dict, from the log of a training run:
               sequence       tokens of its sequences
               tokens_per_s   as logged
               logged_by      "device": tokens of one device in a second; "job": of all together
               num_devices
               peak           FLOP/s of one device, from its data sheet, in the run's precision
               sparsity       True: that is the number "with sparsity", twice what dense matrices
                              can reach; False: it is the dense one
               recompute      in backward: "none"; "full", all layers and the head forward again;
                              "selective", attention's scores and their product with the values

    flops_per_token(model, sequence)
        returns  operations of the model for one token, forward and backward; a multiplication and
                 an addition are two
    mfu(model, run)
        returns  the model's own operations as a share of the dense peak of all devices: 0.4, not 40
    hfu(model, run)
        returns  the same for all operations, those that recomputation repeats as well

Counted are, as in appendix B of PaLM: the matrices of attention, of MLPs and of the head, but not
the table in which tokens are looked up; and attention's scores and their product with the values,
for every pair of tokens of a sequence, also for those that a causal mask hides.

Contract
    returns  numbers. Within a thousandth: whether norms are counted makes no difference
    never    labkit.calc. It is a few lines

Papers: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B; Korthikanti et al., arXiv:2205.05198,
section 5, for selective recomputation.
"""

from collections.abc import Mapping
from typing import Any


def flops_per_token(model: Mapping[str, Any], sequence: int) -> float:
    """Of the model, forward and backward."""
    ### BEGIN SOLUTION
    # Backward is twice forward: gradients of the inputs, and of the weights.
    return 3 * (_forward_of_matrices(model) + _forward_of_scores(model, sequence))


def _forward_of_matrices(model: Mapping[str, Any]) -> float:
    """Two operations for each weight."""
    # Queries and output; keys and values.
    attention = 2 * model["hidden"] * model["head_dim"] * (model["heads"] + model["kv_heads"])
    mlp = (3 if model["gated"] else 2) * model["hidden"] * model["ffn"]
    return 2 * (model["layers"] * (attention + mlp) + model["hidden"] * model["vocab"])


def _forward_of_scores(model: Mapping[str, Any], sequence: int) -> float:
    """Each query with each key, and each score with each value."""
    return 2 * 2 * model["layers"] * model["heads"] * model["head_dim"] * sequence
    ### END SOLUTION


def mfu(model: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """The model's own operations as a share of the dense peak."""
    ### BEGIN SOLUTION
    return flops_per_token(model, run["sequence"]) * _tokens_per_peak_flop(run)


def _tokens_per_peak_flop(run: Mapping[str, Any]) -> float:
    devices = run["num_devices"]
    tokens_per_s = run["tokens_per_s"] * (devices if run["logged_by"] == "device" else 1)
    return tokens_per_s / (devices * run["peak"] / (2 if run["sparsity"] else 1))
    ### END SOLUTION


def hfu(model: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """All operations as a share of the dense peak."""
    ### BEGIN SOLUTION
    again = 0.0
    if run["recompute"] != "none":
        again += _forward_of_scores(model, run["sequence"])
    if run["recompute"] == "full":
        again += _forward_of_matrices(model)
    operations = flops_per_token(model, run["sequence"]) + again
    return operations * _tokens_per_peak_flop(run)
    ### END SOLUTION

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
    raise NotImplementedError("not attempted yet: your code replaces this line")


def mfu(model: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """Divide the model's operations per second by the dense peak."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def hfu(model: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """Divide all operations per second by the dense peak."""
    raise NotImplementedError("not attempted yet: your code replaces this line")

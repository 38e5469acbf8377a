"""Activations of one transformer layer, kept from forward to backward.

An interviewer asks: "Model states I can count. How many bytes of activations does a layer keep, per
microbatch? What do tensor parallelism, sequence parallelism, selective and full recomputation and
flash attention each take away, and what is left?"

Write `activation_bytes(s, b, h, a, t, sequence_parallel, recompute, flash)`.

    s, b, h, a         tokens of a sequence, sequences of a microbatch, hidden features, heads
    t                  ranks of tensor parallelism; divides s, h and a
    sequence_parallel  True: what the t ranks would all keep whole is cut along s, and each keeps
                       1/t of it
    recompute          "none"
                       "selective": none of the (s, s) matrices is kept
                       "full": only the layer's input is kept
    flash              True: attention never writes an (s, s) matrix, and keeps one float32 for
                       each token and head instead; selective recomputation then takes away no more
    returns            bytes that one rank keeps of one layer for one microbatch

What is kept for backward, in 2-byte numbers; a dropout mask has 1 byte per number. h' = 4h is the
width inside the MLP:

    attention  input of the norm *                       MLP  input of the norm *
               input of the query-key-value projection *      input of the first linear layer *
               query, key and value                           its output, (s, b, h'): GELU's input
               per head (s, s): softmax, its mask,            GELU's output: the second's input
                 and softmax after that dropout               mask of the dropout at the end *
               input of the output projection
               mask of the dropout after that *

Tensor parallelism splits what has no star over its ranks, by heads or by features of h'. What has
one is whole on each of them, without sequence parallelism. The layer's input is that of its first
norm, and has one.

Contract
    returns  a number of bytes
    never    labkit.calc. It is a few lines

Paper: Korthikanti et al., "Reducing activation recomputation in large transformer models",
arXiv:2205.05198, section 4.
"""


def activation_bytes(
    s: int,
    b: int,
    h: int,
    a: int,
    t: int,
    sequence_parallel: bool,
    recompute: str,
    flash: bool,
) -> float:
    """Bytes that one rank keeps of one layer, for one microbatch."""
    raise NotImplementedError("not attempted yet: your code replaces this line")

"""Count the activations that one transformer layer keeps from forward to backward.

An interviewer asks: "Model states I can count. How many bytes of activations does a layer keep, per
microbatch? What do tensor parallelism, sequence parallelism, selective and full recomputation and
flash attention each take away, and what is left?"

Write `activation_bytes(s, b, h, a, t, sequence_parallel, recompute, flash)`.

    s, b, h, a         tokens per sequence, sequences per microbatch, hidden features, heads
    t                  ranks of tensor parallelism; divides s, h and a
    sequence_parallel  True: the tensors with a star are split along s, so that each of the t ranks
                       keeps 1/t of them. False: each rank keeps them whole
    recompute          "none": everything in the list below is kept
                       "selective": the same without the (s, s) tensors
                       "full": only the layer's input is kept, with flash attention too
    flash              True: flash attention. The (s, s) tensors never exist. Instead of them one
                       float32 is kept per token and head, with recompute="selective" too
    returns            bytes that one rank keeps of one layer for one microbatch

The list of what backward needs. Tensors have the shape (s, b, h) unless it says otherwise. A number
takes 2 bytes, and 1 byte in a dropout mask. The MLP's inner width is 4h.

    attention  input of the norm *
               input of the query-key-value projection *
               query, key and value: three tensors
               (s, s) per head and sequence: the softmax's output, its dropout mask, and what
               the dropout returns
               input of the output projection
               mask of the dropout at the end *
    MLP        input of the norm *
               input of the first linear layer *
               input of GELU, (s, b, 4h)
               input of the second linear layer, (s, b, 4h)
               mask of the dropout at the end *

Tensor parallelism splits the tensors without a star over its t ranks, by heads or by the MLP's
inner features. It splits the float32 numbers of flash attention by heads too. The layer's input is
the input of its first norm, so it has a star.

Contract
    returns  a number of bytes
    never    labkit.calc. The answer takes a few lines

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
    """Count the bytes that one rank keeps of one layer, for one microbatch."""
    ### BEGIN SOLUTION
    split = t if sequence_parallel else 1  # ranks over which the starred tensors are split
    if recompute == "full":
        return 2 * s * b * h / split
    starred = 2 * (2 + 2 + 1) * s * b * h  # attention and MLP: norm, linear layer, mask of each
    inside = (3 * 2 + 2) * s * b * h + (2 + 2) * s * b * 4 * h  # attention, then the MLP
    scores = (2 + 1 + 2) * a * s * s * b
    if flash:
        scores = 4 * a * s * b
    elif recompute == "selective":
        scores = 0
    return starred / split + (inside + scores) / t
    ### END SOLUTION

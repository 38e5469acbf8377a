"""Combined ("3D") parallelism: dp x tp x pp on real ranks, with ZeRO-1 over dp.

    Mesh(world, dp=2, pp=2, tp=2)                the batch is cut over dp, the layers over pp, and
                                                 each layer over tp
             pp 0: first layers      pp 1: last layers
             tp 0      tp 1          tp 0      tp 1
    dp 0     rank 0 -- rank 1  ==>   rank 2 -- rank 3          rows 0 1 of a batch of 4
                |        |              |        |
    dp 1     rank 4 -- rank 5  ==>   rank 6 -- rank 7          rows 2 3

    --   tp    rank 0 and 1     sum their results, several times in each layer
    ==>  pp    rank 0 and 2     outputs there, their gradients back, for each microbatch
    |    dp    rank 0 and 4     gradients and parameters, once

A step, seen from rank 0:

    for each microbatch, in the order of the schedule
        F    embedding, first blocks; each sum with rank 1;     x_BTD to rank 2
        B    the gradient of x_BTD from rank 2;                 each sum with rank 1
    tied     its part of the embedding's gradient to rank 2, which has the head; the other's back
    reduce   means of its fragments, with rank 4                ZeRO-1's reduce-scatter
    clip     one number, with all
    step     on its fragments alone; parameters from rank 4     ZeRO-1's all-gather

Wire of a rank in a step, for a replica of b rows, L blocks over p stages, P parameters in all:

    tp    8 L/p (t-1)/t b T D, and more for embedding, head and loss    in each layer, waited for
    pp    up to 2 b T D, the same on each of t ranks                    in each microbatch
    dp    2 (d-1)/d P/(t p)                                             in each step

in numbers; calc.combined_traffic_bytes has it exactly. What is waited for most often belongs on the
fastest links: tp is the last axis, whose ranks are neighbours in a node.

gpt_3d.py      a rank's stages, each with its share of every layer; the whole parameters again
train_3d.py    CombinedTraining, train: the serial step on dp * tp * pp ranks; which rows a rank
               sees; the norm over all axes; bytes of a journal, by axis

Papers: Narayanan et al., arXiv:2104.04473; Rajbhandari et al., arXiv:1910.02054.
"""

from labkit.combined.gpt_3d import CombinedGPT, ParallelStage, gather_full_state
from labkit.combined.train_3d import (
    CombinedTraining,
    axis_of,
    clip_gradients,
    own_rows,
    sent_by_axis,
    train,
    weight_of,
    within,
)

__all__ = [
    "CombinedGPT",
    "CombinedTraining",
    "ParallelStage",
    "axis_of",
    "clip_gradients",
    "gather_full_state",
    "own_rows",
    "sent_by_axis",
    "train",
    "weight_of",
    "within",
]

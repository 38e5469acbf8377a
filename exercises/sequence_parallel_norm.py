"""The norm between two tensor-parallel layers, under sequence parallelism.

An interviewer asks: "Tensor parallelism all-reduces the output of every row-parallel layer. Then
all ranks add the same residual and compute the same norm. What is redundant, and what does it cost
in memory? Shard that region over the sequence. Why does it send no more bytes? Which gradient is
wrong if you only think of the activations?"

Write `sequence_parallel_norm(z_ND, r_nD, weight_D, group)`. It computes what lies between a
row-parallel layer and the next column-parallel layer: sum, residual, LayerNorm.

Contract
    rows      the N = B T rows are split in rank order into blocks of k = ceil(N / n) rows: rank r
              has the rows r k to (r + 1) k, as far as there are any. The last ranks may have fewer
              rows, or none
    z_ND      (N, D): this rank's partial output of the row-parallel layer, for all rows. The
              layer's output is the sum of z_ND over the ranks
    r_nD      (n_rows, D): the residual, this rank's rows
    weight_D  (D,): the weight of the norm, the same on every rank
    group     has `group.rank`, `group.size` and three collectives. `reduce_scatter(x)` returns the
              rank's block of the sum of x; n must divide the rows of x. `all_gather(x)` joins the
              ranks' tensors, all of one shape, along dim 0. `all_reduce(x)` returns the sum.
              Those that sum take op="sum" or "mean". Autograd does not record any of them
    returns   (residual_nD, x_ND). residual_nD is the layer's output plus the residual, this rank's
              rows. x_ND is LayerNorm of that, all N rows, the same on every rank: over D, with
              weight_D, without bias, eps 1e-5
    backward  backward() gives the gradients of z_ND, r_nD and weight_D. What is differentiated is
              the sum of the losses of all ranks. The next layer has other columns on each rank, so
              the gradient of x_ND that comes in on a rank is only a part of the whole. weight_D is
              used on every rank for other rows: its gradient is the sum over the ranks
    The arguments must not change, and no hook may stay on them.

Budget, on every rank
    traffic  forward 2 (n-1) k D numbers. Backward as many, and 2 (n-1)/n D more. Collectives count
             as on a ring: an all_reduce of X bytes sends 2(n-1)/n X, a reduce_scatter (n-1)/n X, an
             all_gather n-1 times what the rank hands in
    memory   with two or more ranks. Between forward and backward no tensor of N rows is kept,
             besides z_ND and x_ND. In forward at most two tensors of N rows are alive at once,
             z_ND not counted; x_ND is one of them. In backward at most two, where z_ND, x_ND and
             the gradient of x_ND that autograd passes in do not count; the gradient of z_ND does

torch.autograd.Function, torch.nn.functional.layer_norm and torch.nn.functional.pad help.
"""

from typing import Any

import torch
from torch.nn.functional import layer_norm, pad

from labkit.comm import Group


def sequence_parallel_norm(
    z_ND: torch.Tensor, r_nD: torch.Tensor, weight_D: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's rows of the new residual, and all rows of its norm.

    On a ring, forward and backward each send what one all-reduce of z_ND sends. Backward also
    all-reduces weight_D's gradient.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")

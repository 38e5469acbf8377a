"""A column-parallel linear layer with several adapters.

An interviewer asks: "Your base model is tensor-parallel, and each request of a batch brings its own
LoRA adapter. Which half of an adapter do you shard beside a column-parallel weight? Which
communication do the adapters add, forward and backward, and does it grow with the tokens?"

Write `lora_linear(x_BTI, w_oI, a_KrI, b_Kor, adapter_B, scale, group)`. For each row i of the batch
it returns this rank's features of

    W x_i + scale * B_k A_k x_i     with k = adapter_B[i]
    W x_i                           where adapter_B[i] is -1

Contract
    x_BTI      the input, the same on every rank. It needs a gradient
    w_oI       this rank's rows of the weight W, which is (O, I). It is frozen
    a_KrI      A of each of the K adapters, whole and the same on every rank. It is trained
    b_Kor      this rank's rows of B of each adapter: the same outputs as in w_oI. It is trained
    adapter_B  int64, the same on every rank: the adapter of each row, 0 to K - 1, or -1
    shards     the O outputs are split in rank order. With O < n some ranks have none: their shards
               are empty tensors
    group      has `group.rank`, `group.size` and two collectives. `all_reduce(x)` returns the sum
               over the ranks. `all_gather(x)` joins the ranks' tensors, all of one shape, along
               dim 0. Autograd does not record either: it treats what they return as a constant
    returns    y_BTo, in the order of the rows
    backward   each rank calls backward() with the gradient of its own y_BTo. Then the gradients of
               x, of A and of this rank's rows of B must be those of one process with the whole
               layer. Adapters that no row uses have zeros, or no gradient

Budget, on every rank
    forward    nothing
    backward   two all_reduces: one of B T I numbers, and one of K r I numbers

A torch.autograd.Function helps: autograd does not record its forward, and you write its backward.

Papers: Hu et al., "LoRA", arXiv:2106.09685; Sheng et al., "S-LoRA", arXiv:2311.03285, section 6.
"""

from typing import Any

import torch
from torch.nn.functional import linear

from labkit.comm import Group


def lora_linear(
    x_BTI: torch.Tensor,
    w_oI: torch.Tensor,
    a_KrI: torch.Tensor,
    b_Kor: torch.Tensor,
    adapter_B: torch.Tensor,
    scale: float,
    group: Group,
) -> torch.Tensor:
    """Return this rank's output features y_BTo, with the change of each row's adapter.

    On a ring each rank sends 2(n-1)/n of the bytes of x and of A in backward.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")

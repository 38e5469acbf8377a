"""Top-k compression with error feedback.

An interviewer asks: "Your gradients do not fit through the network. Send the largest 1% of the
entries and nothing else. Write the compressor, and what takes the place of the all-reduce. What
happens to the other 99%? When does this send more than the all-reduce would?"

What is not sent in a step is owed: it is kept, and added to the gradient of the next step. So a
training loop calls your two functions like this, on every rank:

    owed = torch.zeros(numel)
    for gradient in gradients:
        indices, values, owed = compress(gradient, owed, k)
        mean = exchange(indices, values, numel, group)       # for the optimizer

Write both.

    compress(gradient, owed, k)              (indices, values, owed)
        gradient  (numel,) float32 or float64, this rank's; left alone
        owed      (numel,), of the same dtype: what this rank has not sent yet; may be overwritten
        k         how many entries may be sent, 1 to numel
        returns   indices (k,) int64: the k places at which gradient and debt together have the
                  largest magnitudes, in any order; values (k,): what there is at these places, of
                  the gradient's dtype; owed (numel,): what is left out now, and so owed afterwards
    exchange(indices, values, numel, group)  the mean over the ranks of what they send
        returns   (numel,), of the dtype of values, the same on every rank: for each place the sum
                  of what all ranks have sent for it, divided by the number of ranks. A rank that
                  has sent nothing for a place counts as 0 there. indices and values are left alone
        group     `group.rank`, `group.size`, and one collective, `group.all_gather(tensor)`: every
                  rank's tensor, joined along dim 0 in rank order

Budget of a step, on every rank
    collectives  two all_gathers
    payload      k * (8 + itemsize) bytes in all: k places of 8 bytes and k values
"""

import torch

from labkit.comm import Group


def compress(
    gradient: torch.Tensor, owed: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is sent, (k,) places and values, and what is owed from now on, (numel,).

    The values, written into zeros at their places, plus the new debt are gradient + owed.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")


def exchange(indices: torch.Tensor, values: torch.Tensor, numel: int, group: Group) -> torch.Tensor:
    """The mean over all ranks of what they send, (numel,), the same on every rank.

    Wire, on a ring: n - 1 times k * (8 + itemsize) bytes per rank.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")

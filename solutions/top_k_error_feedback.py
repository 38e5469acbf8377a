"""Top-k compression with error feedback.

An interviewer asks: "Your gradients do not fit through the network. Send the largest 1% of the
entries and nothing else. Write the compressor, and the function that replaces the all-reduce. What
happens to the other 99%? When does this send more than the all-reduce would?"

An entry that is not sent in a step is owed. Each rank keeps what it owes, and adds it to the
gradient of the next step. A training loop calls your two functions like this, on every rank:

    owed = torch.zeros(numel)
    for gradient in gradients:
        indices, values, owed = compress(gradient, owed, k)
        mean = exchange(indices, values, numel, group)       # for the optimizer

Write both.

    compress(gradient, owed, k) returns (indices, values, owed)
        gradient  (numel,) float32 or float64, this rank's. It does not change
        owed      (numel,), the same dtype: what this rank has not sent yet. You may overwrite it
        k         how many entries are sent, 1 to numel
        indices   (k,) int64, in any order: the places where gradient + owed has the k largest
                  magnitudes. No two of these magnitudes are equal
        values    (k,), the gradient's dtype: (gradient + owed)[indices]
        owed      (numel,), the gradient's dtype: gradient + owed, with zeros at indices
    exchange(indices, values, numel, group) returns the mean of what the ranks send
        indices   (k,) int64, and values (k,), as from compress. They do not change
        returns   (numel,), the dtype of values, the same on every rank. At each place it has the
                  sum of all values that ranks sent for this place, divided by the number of all
                  ranks. A rank that sent nothing for a place counts as 0 there
        group     `group.rank`, `group.size`, and one collective, `group.all_gather(tensor)`. It
                  returns every rank's tensor, joined along dim 0 in rank order

Budget of exchange, on every rank
    collectives  two all_gathers
    payload      k * (8 + itemsize) bytes in all: k places of 8 bytes, and k values
"""

import torch

from labkit.comm import Group


def compress(
    gradient: torch.Tensor, owed: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is sent, (k,) places and values, and what is owed from now on, (numel,).

    The values, at their places in a tensor of zeros, plus the new debt are gradient + owed.
    """
    ### BEGIN SOLUTION
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]  # with their signs, which abs() removed
    due[indices] = 0
    return indices, values, due
    ### END SOLUTION


def exchange(indices: torch.Tensor, values: torch.Tensor, numel: int, group: Group) -> torch.Tensor:
    """Return the mean over all ranks of what they send, (numel,), the same on every rank.

    Wire, on a ring: each rank sends n - 1 times k * (8 + itemsize) bytes.
    """
    ### BEGIN SOLUTION
    # Ranks choose different places, so a ring cannot add the values on the way.
    all_indices = group.all_gather(indices)
    all_values = group.all_gather(values)
    # Several ranks may send one place. total[all_indices] += all_values would keep one of them.
    total = values.new_zeros(numel).index_add_(0, all_indices, all_values)
    return total / group.size
    ### END SOLUTION

"""Mutant: all the logits come to every rank, padded to one size.

outcome: "over budget"
diagnosis: "gathers the logits"
"""

import torch
from torch.nn.functional import cross_entropy, pad


def vocab_cross_entropy(logits_Nv, first, targets_N, group):
    num_positions, num_tokens = logits_Nv.shape
    own_size = torch.tensor([num_tokens])
    sizes = group.all_gather(own_size).tolist()
    longest = max(sizes)
    padded_vN = pad(logits_Nv.float(), (0, longest - num_tokens)).t()
    parts = group.all_gather(padded_vN.contiguous()).split(longest)
    x_NV = torch.cat([part[:size] for part, size in zip(parts, sizes)]).t().requires_grad_()
    loss = cross_entropy(x_NV, targets_N)
    loss.backward()
    gradient_Nv = x_NV.grad[:, first : first + num_tokens]
    return loss.detach(), gradient_Nv.to(logits_Nv.dtype)

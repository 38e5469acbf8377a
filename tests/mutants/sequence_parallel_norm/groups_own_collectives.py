"""Mutant: the collectives are called as they are.

outcome: "wrong"
diagnosis: "no gradient flows through the collectives"
"""

from torch.nn.functional import layer_norm, pad


def sequence_parallel_norm(z_ND, r_nD, weight_D, group):
    k = -(-len(z_ND) // group.size)
    padded_ND = pad(z_ND, (0, 0, 0, k * group.size - len(z_ND)))
    residual_nD = r_nD + group.reduce_scatter(padded_ND)[: len(r_nD)]
    normed_nD = layer_norm(residual_nD, weight_D.shape, weight_D, eps=1e-5)
    x_ND = group.all_gather(pad(normed_nD, (0, 0, 0, k - len(r_nD))))[: len(z_ND)]
    return residual_nD, x_ND

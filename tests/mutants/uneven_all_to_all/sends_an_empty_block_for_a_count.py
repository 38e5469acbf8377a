"""Mutant: has no number for ranks without rows, but an empty block.

outcome: "crashed"
diagnosis: "forgets ranks that get no rows"
"""

import torch


def uneven_all_to_all(x, counts, group):
    n, rank = group.size, group.rank
    others = [peer for peer in range(n) if peer != rank]
    sending = [group.isend(counts[peer].clone(), peer) for peer in others if counts[peer]]
    sending += [
        group.isend(block, peer)
        for peer, block in enumerate(x.split(counts.tolist()))
        if peer != rank
    ]
    receive_counts = counts.clone()
    for peer in others:
        group.recv(receive_counts[peer], peer)
    result = x.new_empty(int(receive_counts.sum()), *x.shape[1:])
    incoming = result.split(receive_counts.tolist())
    incoming[rank].copy_(x.split(counts.tolist())[rank])
    for peer in others:
        group.recv(incoming[peer], peer)
    for pending in sending:
        pending.wait()
    return result

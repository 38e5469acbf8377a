"""Mutant: tells only those ranks how many rows come that get any.

outcome: "hung"
diagnosis: "forgets ranks that get no rows"
"""

import torch


def uneven_all_to_all(x, counts, group):
    n, rank = group.size, group.rank
    sending = [
        group.isend(counts[peer].clone(), peer)
        for peer in range(n)
        if peer != rank and counts[peer]
    ]
    receive_counts = counts.clone()
    for peer in range(n):
        if peer != rank:
            group.recv(receive_counts[peer], peer)
    for pending in sending:
        pending.wait()
    result = x.new_empty(int(receive_counts.sum()), *x.shape[1:])
    outgoing, incoming = x.split(counts.tolist()), result.split(receive_counts.tolist())
    incoming[rank].copy_(outgoing[rank])
    others = [peer for peer in range(n) if peer != rank]
    sending = [group.isend(outgoing[peer], peer) for peer in others if counts[peer]]
    receiving = [group.irecv(incoming[peer], peer) for peer in others if receive_counts[peer]]
    for pending in [*receiving, *sending]:
        pending.wait()
    return result

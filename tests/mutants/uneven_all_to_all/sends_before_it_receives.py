"""Mutant: sends with a blocking send, and receives afterwards, on every rank.

outcome: "hung"
diagnosis: "every rank is in send: nobody receives"
"""

import torch


def exchange(outgoing, incoming, group):
    n, rank = group.size, group.rank
    incoming[rank].copy_(outgoing[rank])
    for step in range(1, n):
        destination, source = (rank + step) % n, (rank - step) % n
        sending = group.isend(outgoing[destination], destination)
        group.irecv(incoming[source], source).wait()
        sending.wait()


def uneven_all_to_all(x, counts, group):
    n, rank = group.size, group.rank
    receive_counts = counts.clone()
    for step in range(1, n):
        group.send(counts[(rank + step) % n].clone(), (rank + step) % n)
        group.recv(receive_counts[(rank - step) % n], (rank - step) % n)
    result = x.new_empty(int(receive_counts.sum()), *x.shape[1:])
    exchange(x.split(counts.tolist()), result.split(receive_counts.tolist()), group)
    return result

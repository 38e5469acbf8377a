"""Mutant: sends whole tensors, and patches the journal so that they look like segments.

outcome: "wrong"
diagnosis: "sends more than its journal says"
"""

import torch

from labkit.comm.journal import Journal

truthful_post = Journal.post


def lying_post(self, kind, group, sequence, x, **fields):
    honest = x if not hasattr(lying_post, "segment") else lying_post.segment
    for name in ("sent_bytes", "received_bytes"):
        fields[name] = min(fields[name], honest.nbytes)
    return truthful_post(self, kind, group, sequence, honest, **fields)


def ring_all_reduce(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    parts = [x]
    Journal.post = lying_post
    try:
        segments = x.flatten().tensor_split(n)
        for step in range(2 * (n - 1)):
            sent = rank - step if step < n - 1 else rank - step + n
            lying_post.segment = segments[sent % n]
            outgoing = group.isend(parts[-1], right)
            lying_post.segment = segments[(sent - 1) % n]
            parts.append(group.irecv(torch.empty_like(x), left).wait())
            outgoing.wait()
    finally:
        Journal.post = truthful_post
    total = parts[0].clone()
    for part in parts[1:n]:
        total += part
    return total

"""Buckets cut again, in the order in which gradients have arrived.

At first buckets are cut by the order in which modules are made. Where modules are used in another
order, the first bucket waits for a late gradient, and the others, which start in order, wait for
the first. After one pass the order of arrival is known:

    made, and so cut     w0 w1 w2 w3      [w3 w2] [w1 w0]      none starts before the end
    gradients arrive     w0 w3 w1 w2      [w0 w3] [w1 w2]      the first starts after two

Ranks may have seen different orders, and all must cut alike: they take rank 0's.
Wire: a broadcast of 8 bytes per trained parameter, once. Memory: where buckets change, all
gradients twice while they move.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 6.2.1, which proposes it; torch's
DDP does it after its first pass too.
"""

from collections.abc import Sequence

import torch

from labkit.comm import Group
from labkit.data_parallel.bucketed import Bucket, cut, make_buckets


def agreed_order(arrived: Sequence[str], buckets: Sequence[Bucket], group: Group) -> list[str]:
    """Rank 0's order of the parameters' names, on every rank. `arrived`: this rank's, of all."""
    names = sorted(name for bucket in buckets for name in bucket.names)
    number_of = {name: number for number, name in enumerate(names)}
    mine = torch.tensor([number_of[name] for name in arrived], device=group.device)
    with group.label("the order in which gradients arrive"):
        return [names[number] for number in group.broadcast(mine, root=0).tolist()]


def cut_by(order: Sequence[str], buckets: list[Bucket], bucket_bytes: int) -> list[Bucket]:
    """New buckets for the same parameters, in this order; the old ones where nothing changes.

    Gradients move: `parameter.grad` is a view into the new buckets.
    """
    parameters = {
        name: parameter
        for bucket in buckets
        for name, parameter in zip(bucket.names, bucket.parameters, strict=True)
    }
    # Those that arrive last come first in a module, as far as buckets know.
    parameters = {name: parameters[name] for name in reversed(order)}
    if [tuple(each) for each in cut(parameters, bucket_bytes)] == [each.names for each in buckets]:
        return buckets
    new = make_buckets(parameters, bucket_bytes)
    for bucket in new:
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            if (gradient := parameter.grad) is not None:
                parameter.grad = view.copy_(gradient).as_subclass(type(gradient))
    return new

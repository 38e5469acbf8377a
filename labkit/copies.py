"""Check that copies of one tensor on several ranks are equal, bit for bit.

Copies, such as replicas of a model, start equal and stay so while all ranks take the same steps. If
they do not, nothing fails, but the model trains badly. So arguments are compared before the first
step, and copies after the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from labkit.comm import Group


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one shape and dtype have equal bits; nan equals itself here."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def require_equal_copies(state: Mapping[str, Tensor], world: Group, asked: str) -> None:
    """Raise RuntimeError on every rank unless all ranks have the same. Every rank calls it.

    state: the same names on each, in one order. asked: what to look at, a question.
    Wire: a broadcast of each, and an all-reduce of as many numbers.
    """
    differ = set()
    for name, tensor in state.items():
        mine = tensor.to(world.device)
        if not same_bits(mine, world.broadcast(mine, 0)):
            differ.add(name)
    require_none_differ(list(state), differ, world, asked)


def require_none_differ(
    names: list[str], differ: Collection[str], world: Group, asked: str
) -> None:
    """Raise RuntimeError on every rank, naming what differs on any. Every rank calls it.

    names: the same on each. differ: those that do on this one. asked: what to look at.
    """
    found = torch.tensor([name in differ for name in names], dtype=torch.int64).to(world.device)
    anywhere = world.all_reduce(found, "max").tolist()
    wrong = [name for name, is_one in zip(names, anywhere, strict=True) if is_one]
    if wrong:
        raise RuntimeError(
            f"copies of {', '.join(wrong)} differ between ranks, which have taken different steps: "
            f"{asked}"
        )


def require_same(world: Group, *given: object) -> None:
    """Raise ValueError on every rank unless all ranks have got the same arguments, by their repr.

    Wire: an all-gather of 8 bytes.
    """
    digest = hashlib.sha256(repr(given).encode()).digest()[:8]
    mine = torch.frombuffer(bytearray(digest), dtype=torch.int64).to(world.device)
    with world.label("what is trained"):
        of_all = world.all_gather(mine).tolist()
    other = [str(rank) for rank, each in enumerate(of_all) if each != of_all[0]]
    if other:
        ranks = f"ranks {', '.join(other)} have" if len(other) > 1 else f"rank {other[0]} has"
        raise ValueError(
            f"{ranks} other sizes, routing or settings than rank 0, and copies of one model would "
            f"take different steps; on rank {world.rank} they are {', '.join(map(repr, given))}"
        )

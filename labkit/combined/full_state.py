"""The whole parameters again, from shares over tp and stages over pp; and are the copies equal?

    over tp    the stage's ranks gather the shares of a parameter
    over pp    the holder's ranks hand it on, each along its own pipeline
    then       every rank of the world has the whole, and all must have the same

Copies (replicas over dp, norms over tp, the tied weight over pp) start equal, and stay so while all
ranks take the same steps. If they do not, nothing fails, and the model trains badly. Here it fails.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.combined.gpt import TIED, CombinedGPT
from labkit.comm import Group
from labkit.model import GPT


@torch.no_grad()
def gather_full_state(model: CombinedGPT) -> dict[str, Tensor]:
    """The whole parameters, on every rank, by GPT's names. Every rank of the mesh calls it.

    RuntimeError, on every rank, that names the parameters whose copies differ. Wire: for each
    parameter an all-gather over tp, a broadcast over pp, and one over all ranks to compare.
    """
    mesh, own, cuts = model.mesh, model.gpt_parameters(), model.cuts()
    state, differ = {}, set()
    for name, parameter in _template(model):
        root = model.holder_of(name)
        mine = torch.empty_like(parameter, device=mesh.world.device)
        if name in own:
            mine = cuts[name].gather(own[name], mesh.tp)
        state[name] = mesh.pp.broadcast(mine, root)
        if name == TIED and name in own and not _same_bits(mine, state[name]):
            differ.add(name)
        if not _same_bits(state[name], mesh.world.broadcast(state[name], 0)):
            differ.add(name)
    _require_equal(list(state), differ, mesh.world)
    return state


def _template(model: CombinedGPT) -> list[tuple[str, Tensor]]:
    """Every parameter, without its numbers, in an order that is the same on all ranks."""
    with torch.device("meta"):
        whole = GPT(model.config, dtype=next(model.parameters()).dtype)
    return list(whole.named_parameters())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """nan equals itself here."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _require_equal(names: list[str], differ: set[str], world: Group) -> None:
    found = torch.tensor([name in differ for name in names], dtype=torch.int64).to(world.device)
    anywhere = world.all_reduce(found, "max").tolist()
    wrong = [name for name, is_one in zip(names, anywhere, strict=True) if is_one]
    if wrong:
        raise RuntimeError(
            f"copies of {', '.join(wrong)} differ between ranks, which have taken different steps: "
            "were gradients reduced over dp, those of the tied weight over pp, and clipped by one "
            "norm on all ranks?"
        )

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
from labkit.copies import require_none_differ, same_bits
from labkit.model import GPT

_ASKED = (
    "were gradients reduced over dp, those of the tied weight over pp, and clipped by one norm on "
    "all ranks?"
)


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
        if name == TIED and name in own and not same_bits(mine, state[name]):
            differ.add(name)
        if not same_bits(state[name], mesh.world.broadcast(state[name], 0)):
            differ.add(name)
    require_none_differ(list(state), differ, mesh.world, _ASKED)
    return state


def _template(model: CombinedGPT) -> list[tuple[str, Tensor]]:
    """Every parameter, without its numbers, in an order that is the same on all ranks."""
    with torch.device("meta"):
        whole = GPT(model.config, dtype=next(model.parameters()).dtype)
    return list(whole.named_parameters())

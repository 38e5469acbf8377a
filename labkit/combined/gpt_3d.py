"""A rank's part of the lab's GPT: some layers (pp), and of each of them a share (tp).

    pp 0   tp 0   embedding v0, blocks 0..: heads and MLP features of share 0
           tp 1   embedding v1, blocks 0..: share 1
    pp 1   tp 0   blocks ..L-1: share 0, norm, head v0       the head is the embedding's share
           tp 1   blocks ..L-1: share 1, norm, head v1

First every layer is cut (labkit.tensor_parallel), then the layers are dealt out (labkit.pipeline):
a stage talks along tp within its layers, and along pp at its ends, and neither knows of the other.

Layout: parameters as in labkit.tensor_parallel.gpt_tp, each on one stage, and the tied one on two.
Between stages x_BTD is replicated over tp: tp ranks send the same bytes, each to its own neighbour.
That is t times what is needed; Megatron-LM sends a t-th each and gathers it where links are fast
(scatter-gather, section 4.1 of the paper), and where tokens are cut between the layers
(SequenceSharded) nothing is sent twice to begin with. The lab sends it t times, and calc counts it.
Paper: Narayanan et al., arXiv:2104.04473.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from labkit.copies import require_none_differ, same_bits
from labkit.mesh import Mesh
from labkit.model import GPTConfig, require_tokens
from labkit.pipeline import GPTStage, PipelineGPT, Schedule
from labkit.pipeline.gpt_pp import TIED
from labkit.tensor_parallel import (
    Replicated,
    Sharding,
    TensorParallelGPT,
    column_linear,
    parallelize,
)
from labkit.tensor_parallel.gpt_tp import ParallelBlock, normed
from labkit.tensor_parallel.gradients import parameters_with_shardings

_ASKED = (
    "were gradients reduced over dp, those of the tied weight over pp, and clipped by one norm on "
    "all ranks?"
)


class ParallelStage(GPTStage):
    """Some neighbouring layers of a GPT, of each of which this rank has a share."""

    def __init__(self, whole: TensorParallelGPT, layers: range) -> None:
        super().__init__(whole, layers)
        self.group, self.backend = whole.group, whole.backend

    def forward(self, x: Tensor) -> Tensor:
        """tokens_BT or x_BTD -> x_BTD or logits_BTv. Every tp rank passes the same.

        Wire, over tp: one sum of B*T*D numbers for the embedding, two for each block; backward two
        for each block, and one for the head.
        """
        layout = Replicated(self.group, self.backend)
        if self.embedding is not None:
            require_tokens(x, self.config.vocab, self.config.max_positions)
            position = self.embedding.position
            x = self.embedding(x, None if position is None else position.weight, layout)
        for block in self.blocks.values():
            assert isinstance(block, ParallelBlock)
            x = block(x, block.attention_norm.weight, block.mlp_norm.weight, layout)
        if self.norm is not None and self.head is not None:
            (x,) = column_linear(normed(x, self.norm.weight), layout, self.head.weight)
        return x


class CombinedGPT(PipelineGPT):
    """The stages of a GPT that the rank at this place of a mesh holds, with its share of each.

    As GPT(config, seed, dtype), whose names parameters keep. The mesh has axes pp and tp; what
    others it has hold copies. schedule: of mesh.pp.size ranks. layers: by stage; None: by FLOPs.
    ValueError if tp does not share the heads evenly, and as in PipelineGPT.
    """

    def __init__(
        self,
        config: GPTConfig,
        schedule: Schedule,
        mesh: Mesh,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        layers: Sequence[range] | None = None,
    ) -> None:
        cut, rank = partial(parallelize, group=mesh.tp), mesh.pp.rank
        super().__init__(config, schedule, rank, seed, dtype, layers, cut, ParallelStage)
        self.mesh = mesh
        self.to(mesh.world.device)

    def shardings(self) -> dict[str, Sharding]:
        """Return the sharding of each of this rank's parameters over tp, by GPT's names."""
        found = {}
        for stage in self.stages.values():
            for name, _, cut in parameters_with_shardings(stage):
                found[TIED if name == "head.weight" else name] = cut
        return found

    def num_copies(self) -> dict[str, int]:
        """Return how many ranks of one dp coordinate hold just this rank's part of each parameter.

        sharded over tp    1
        key-value heads    t / G, where there are fewer than tp ranks
        norms, positions   t
        embedding, head    2, where the first and the last stage are on two ranks
        """
        first, last = (self.schedule.rank_of[s] for s in (0, self.schedule.num_stages - 1))
        found = {name: cut.num_holders(self.mesh.tp) for name, cut in self.shardings().items()}
        if TIED in found and first != last:
            found[TIED] *= 2
        return found


@torch.no_grad()
def gather_full_state(model: CombinedGPT) -> dict[str, Tensor]:
    """Return the whole parameters, on every rank, by GPT's names. Every rank of the mesh calls it.

    over tp    the stage's ranks gather the shares of a parameter
    over pp    the holder's ranks hand it on, each along its own pipeline
    then       every rank of the world has the whole, and all must have the same

    Copies (replicas over dp, norms over tp, the tied weight over pp) start equal, and stay so while
    all ranks take the same steps. If they do not, nothing fails, and the model trains badly. Here
    it fails: RuntimeError, on every rank, that names the parameters whose copies differ.
    Wire: for each parameter an all-gather over tp, a broadcast over pp, and one over all ranks to
    compare.
    """
    mesh, own, shardings = model.mesh, model.gpt_parameters(), model.shardings()
    state, differ = {}, set()
    for name, parameter in model.whole_parameters():
        root = model.owner_of(name)
        mine = torch.empty_like(parameter, device=mesh.world.device)
        if name in own:
            mine = shardings[name].gather(own[name], mesh.tp)
        state[name] = mesh.pp.broadcast(mine, root)
        if name == TIED and name in own and not same_bits(mine, state[name]):
            differ.add(name)
        if not same_bits(state[name], mesh.world.broadcast(state[name], 0)):
            differ.add(name)
    require_none_differ(list(state), differ, mesh.world, _ASKED)
    return state

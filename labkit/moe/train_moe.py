"""A small GPT with experts on real text: serial, and over dp x ep ranks, to the same numbers.

    loss = cross-entropy + sum over layers of (balance_coefficient * balance + z_coefficient * z)

Every rank has its share of the sequences, whatever its coordinates: dp and ep cut the batch alike,
and differ in who holds which experts. All three terms are of the global batch. A rank computes its
part of each; the parts add up (losses.py). So the serial oracle takes the whole batch and knows
nothing of ranks, but for one thing: capacities and expert choice are by rank, and it routes the
same groups of sequences.

Wire of a step, beside layers (dispatch.py) and gradients (gradients_moe.py): an all-reduce of
2 * L * E counts, which the balance loss needs before backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.copies import require_same
from labkit.data import Batch, Corpus
from labkit.global_norm import check_max_norm
from labkit.mesh import Mesh
from labkit.model import GPTConfig
from labkit.moe.gpt_moe import ExpertParallelGPT, MoEGPT, MoEOutput, gather_parameters
from labkit.moe.gradients_moe import clip_gradients, reduce_gradients
from labkit.moe.losses import load_balancing_loss, z_loss
from labkit.moe.moe_config import MoEConfig
from labkit.optimizer import Optimizer
from labkit.train import (
    TrainConfig,
    Trained,
    copy_parameters,
    fit,
    require_configs,
    summed_losses,
)

TERMS = ("cross_entropy", "balance", "z")
Step = tuple[dict[str, Tensor], Tensor]
"""A step's terms of the loss, by name, and counts_2LE: choices of each expert, and dropped ones."""


@dataclass(frozen=True, eq=False)
class MoETrained(Trained):
    """`Trained`, with the terms of each loss and the choices of each step, over all ranks."""

    terms: dict[str, list[float]] = field(repr=False)
    """"cross_entropy", "balance", "z": the last two without their coefficients, summed over
    layers."""
    chosen_SLE: Tensor = field(repr=False)
    """Choices of each expert, by step and layer."""
    dropped_SLE: Tensor = field(repr=False)


def terms_of(
    output: MoEOutput, targets_BT: Tensor, batch: Batch, chosen_LE: Tensor
) -> dict[str, Tensor]:
    """These tokens' part of each term; `batch` and `chosen_LE` are global.

    A token whose target is IGNORED is routed as any other, so it counts in balance and z.
    """
    num_tokens = batch.targets_BT.numel()
    logits_NV, targets_N = output.logits_BTV.flatten(0, 1), targets_BT.flatten()
    balance = [
        load_balancing_loss(routing, chosen_E, num_tokens)
        for routing, chosen_E in zip(output.routings, chosen_LE, strict=True)
    ]
    z = [z_loss(routing, num_tokens) for routing in output.routings]
    return {
        "cross_entropy": F.cross_entropy(logits_NV, targets_N, reduction="sum")
        / max(1, batch.num_targets),
        "balance": torch.stack(balance).sum(),
        "z": torch.stack(z).sum(),
    }


def total_of(terms: dict[str, Tensor], moe: MoEConfig) -> Tensor:
    """The loss."""
    return (
        terms["cross_entropy"]
        + moe.balance_coefficient * terms["balance"]
        + moe.z_coefficient * terms["z"]
    )


def train_serial(
    config: GPTConfig,
    moe: MoEConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    num_groups: int = 1,
    max_norm: float | None = None,
) -> MoETrained:
    """The oracle: one process, the whole batch, routed in `num_groups` groups of sequences.

    num_groups: the ranks it is compared with. None: Python's standard library is the corpus.
    max_norm: what the gradient is clipped to, by torch's own function; None: nothing is.
    """
    _require(config, moe, settings, max_norm)
    arguments.whole("num_groups", num_groups, "the ranks to compare with, 1 or more")
    model = MoEGPT(config, moe, settings.seed, settings.dtype)
    optimizer = settings.make_optimizer(model.parameters())

    def step(batch: Batch) -> Step:
        groups = [len(batch.share(rank, num_groups)) for rank in range(num_groups)]
        optimizer.zero_grad()
        output = model(batch.inputs_BT, groups)
        terms = terms_of(output, batch.targets_BT, batch, output.chosen_LE)
        total_of(terms, moe).backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        model.rebalance(output.chosen_LE)
        return _detached(terms), torch.stack([output.chosen_LE, output.dropped_LE])

    steps = fit(step, config, settings, corpus)
    return _trained(steps, copy_parameters(model), moe)


def train(
    world: Group,
    config: GPTConfig,
    moe: MoEConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    dp: int = 1,
    ep: int | None = None,
    max_norm: float | None = None,
) -> MoETrained:
    """`train_serial` with as many groups as ranks: run(train, 4, (config, moe, settings)).

    ep: None takes the ranks that dp leaves. max_norm: as there. Every rank returns the losses over
    the global batch and the whole parameters, experts of other ranks too.
    ValueError where dp * ep is not the number of ranks, and for ranks with other sizes, routing or
    settings; RuntimeError where copies of parameters differ in the end.
    """
    world = chosen(world)
    _require(config, moe, settings, max_norm)
    require_same(world, config, moe, settings, max_norm)
    dp = arguments.whole("dp", dp, f"1 to {world.size}, the ranks", most=world.size)
    mesh = Mesh(world, dp=dp, ep=max(1, world.size // dp) if ep is None else ep)
    model = ExpertParallelGPT(config, moe, mesh.ep, settings.seed, settings.dtype)
    model = model.to(world.device)
    optimizer = settings.make_optimizer(model.parameters())
    step = partial(train_step, model, optimizer, mesh=mesh, max_norm=max_norm)
    steps = fit(step, config, settings, corpus)
    return _trained(steps, gather_parameters(model, world), moe, world)


def train_step(
    model: ExpertParallelGPT,
    optimizer: Optimizer,
    batch: Batch,
    mesh: Mesh,
    max_norm: float | None = None,
) -> Step:
    """One step on this rank's share of a global batch: its part of each term of the loss.

    max_norm: of the whole gradient, over all ranks; None: it is not clipped.
    Also counts_2LE of the global batch: choices, and dropped ones. The timeline names the phases.
    """
    everyone = mesh.joined("dp", "ep")
    share = batch.share(everyone.rank, everyone.size).to(everyone.device)
    optimizer.zero_grad()
    with everyone.region("forward"):
        output = model(share.inputs_BT)
        counts_2LE = torch.stack([output.chosen_LE, output.dropped_LE])
        with everyone.label("expert load"):
            everyone.all_reduce(counts_2LE, out=counts_2LE)
        terms = terms_of(output, share.targets_BT, batch, counts_2LE[0])
        del output  # else the logits live until the next step
    with everyone.region("backward"):
        # The mean over the ranks is taken of these, and their sum is meant.
        (total_of(terms, model.moe) * everyone.size).backward()
    with everyone.region("reduce"):
        reduce_gradients(model, mesh)
    if max_norm is not None:
        with everyone.region("clip"):
            clip_gradients(model, mesh, max_norm)
    with everyone.region("optimizer"):
        optimizer.step()
        model.rebalance(counts_2LE[0])
    return _detached(terms), counts_2LE


def _detached(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the graph, which would live until the end of the training."""
    return {name: value.detach() for name, value in terms.items()}


def _require(config: object, moe: object, settings: object, max_norm: float | None) -> None:
    require_configs(config, settings)
    arguments.instance("moe", moe, MoEConfig, "give a MoEConfig, the experts and their routing")
    if max_norm is not None:
        check_max_norm(max_norm)


def _trained(
    steps: list[Step], parameters: dict[str, Tensor], moe: MoEConfig, world: Group | None = None
) -> MoETrained:
    """world: the ranks whose terms add up; None: these are all."""
    sums = [[terms[name].item() for name in TERMS] for terms, _ in steps]
    if world is not None:
        sums = summed_losses(sums, world)
    coefficients = (1.0, moe.balance_coefficient, moe.z_coefficient)
    losses = [sum(c * term for c, term in zip(coefficients, each, strict=True)) for each in sums]
    terms = {name: [each[i] for each in sums] for i, name in enumerate(TERMS)}
    counts_S2LE = torch.stack([counts.cpu() for _, counts in steps]) if steps else torch.empty(0, 2)
    return MoETrained(losses, parameters, terms, counts_S2LE[:, 0], counts_S2LE[:, 1])

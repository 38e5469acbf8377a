"""A small GPT with experts on real text: serial, and over dp x ep ranks, to the same numbers.

    loss = cross-entropy + sum over layers of (balance_coefficient * balance + z_coefficient * z)

Every rank has its share of the sequences, whatever its coordinates: dp and ep cut the batch alike,
and differ in who holds which experts. All three terms are of the global batch. A rank computes its
part of each; the parts add up (router.py). So the serial oracle takes the whole batch, without
ranks, with one exception: capacities and expert choice are by rank, and it routes the same groups
of sequences.

Gradients over dp x ep: which sums are still missing, and by how many all are divided.

    mesh dp=2, ep=2        rank 0, 1: experts 0 | 1        rank 2, 3: copies of 0 | 1

    shared      router, attention, norms, ...: every rank has the gradient of its own tokens.
                Summed over dp and ep.
    experts     rows of all ep ranks came to the expert, and backward brought the gradients of all
                their losses: it holds the sum over ep already. Summed over dp only.

Both are divided by the same number, all dp * ep ranks, since each rank's loss is the mean over its
own tokens and the loss that is meant is the mean over all ranks'. The classic mistake divides by
the size of the group that was summed over: an expert's gradient then is ep times too large, which
AdamW hides (it divides by the gradient's size) until the norm is clipped. Clipping is by the norm
of the whole gradient: shared numbers count once, and the experts of all ep ranks count.

Wire of a step, per rank, beside layers (moe_layer.py): an all-reduce of 2 * L * E counts, which the
balance loss needs before backward; two all-reduces in a ring, of all shared gradients over dp x ep
and of the rank's experts over dp; for clipping one number in an all-reduce over ep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import global_norm
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.copies import require_same
from labkit.data import Batch, Corpus
from labkit.data_parallel.reduction import flattened, parts_of
from labkit.global_norm import mark_gradient_shard
from labkit.mesh import Mesh
from labkit.model import GPTConfig
from labkit.moe.gpt_moe import ExpertParallelGPT, MoEGPT, MoEOutput, gather_parameters
from labkit.moe.moe_layer import ExpertParallelMoE, Experts, MoE
from labkit.moe.router import load_balancing_loss, z_loss
from labkit.moe.routing import MoEConfig
from labkit.optimizer import Optimizer
from labkit.train import (
    TrainConfig,
    Trained,
    copy_parameters,
    fit,
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


def train_serial(
    config: GPTConfig,
    moe: MoEConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    num_groups: int = 1,
    max_norm: float | None = None,
) -> MoETrained:
    """Train in one process on whole batches, routed in `num_groups` groups: the oracle.

    num_groups: the ranks it is compared with. corpus: None for Python's standard library.
    max_norm: what the gradient is clipped to, by torch's own function; None: nothing is.
    """
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
    """Run `train_serial` with as many groups as ranks: run(train, 4, (config, moe, settings)).

    ep: None takes the ranks that dp leaves. max_norm: as there. Every rank returns the losses over
    the global batch and the whole parameters, experts of other ranks too.
    ValueError if dp * ep is not the number of ranks, and for ranks with other sizes, routing or
    settings; RuntimeError if copies of parameters differ in the end.
    """
    world = chosen(world)
    require_same(world, config, moe, settings, max_norm)
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
    """Take one step on this rank's share of a batch. Return its part of each term of the loss.

    max_norm: of the whole gradient, over all ranks; None: it is not clipped.
    Also counts_2LE of the global batch: choices, and dropped ones. The timeline names the phases.
    """
    everyone = mesh.combined_group("dp", "ep")
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


def terms_of(
    output: MoEOutput, targets_BT: Tensor, batch: Batch, chosen_LE: Tensor
) -> dict[str, Tensor]:
    """Return these tokens' part of each term; `batch` and `chosen_LE` are global.

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
    """Return the loss."""
    return (
        terms["cross_entropy"]
        + moe.balance_coefficient * terms["balance"]
        + moe.z_coefficient * terms["z"]
    )


def _detached(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy without the graph, which would live until the end of the training."""
    return {name: value.detach() for name, value in terms.items()}


def _trained(
    steps: list[Step], parameters: dict[str, Tensor], moe: MoEConfig, world: Group | None = None
) -> MoETrained:
    """Return the training's result. world: ranks whose terms are summed; None: this rank alone."""
    sums = [[terms[name].item() for name in TERMS] for terms, _ in steps]
    if world is not None:
        sums = summed_losses(sums, world)
    coefficients = (1.0, moe.balance_coefficient, moe.z_coefficient)
    losses = [sum(c * term for c, term in zip(coefficients, each, strict=True)) for each in sums]
    terms = {name: [each[i] for each in sums] for i, name in enumerate(TERMS)}
    counts_S2LE = torch.stack([counts.cpu() for _, counts in steps]) if steps else torch.empty(0, 2)
    return MoETrained(losses, parameters, terms, counts_S2LE[:, 0], counts_S2LE[:, 1])


def shared_and_experts(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the trained parameters by name: those of every rank, and this rank's experts."""
    of_experts = {
        id(parameter)
        for each in module.modules()
        if isinstance(each, Experts)
        for parameter in each.parameters()
    }
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return (
        {name: p for name, p in trained.items() if id(p) not in of_experts},
        {name: p for name, p in trained.items() if id(p) in of_experts},
    )


def reduce_gradients(module: nn.Module, mesh: Mesh) -> None:
    """Replace each gradient by that of the mean over all ranks' losses. After backward, on all.

    mesh: has the axes dp and ep; the experts are sharded over mesh.ep. Where shares of the batch
    differ in size, scale a rank's loss by `len(share) / len(batch) * num_ranks` before backward;
    of padded sequences count the targets that are not ignored.
    Memory: a flat copy of all shared gradients, and then one of the experts'.
    Before anything is sent: RuntimeError that names parameters without a gradient; ValueError for
    experts that are sharded over others than mesh.ep.
    """
    require_sharded_over_ep(module, mesh)
    everyone = mesh.combined_group("dp", "ep")
    shared, experts = shared_and_experts(module)
    without = [name for name, p in (shared | experts).items() if p.grad is None]
    if without:
        raise RuntimeError(
            f"rank {everyone.rank} has no gradient for {', '.join(without)}: its loss did not use "
            "them, and the other ranks would wait for them; call backward first, on every rank"
        )
    _reduce(shared.values(), everyone, everyone.size, "shared gradients")
    _reduce(experts.values(), mesh.dp, everyone.size, "gradients of experts")
    if mesh.ep.size > 1:
        for parameter in experts.values():
            mark_gradient_shard(parameter)


def clip_gradients(module: nn.Module, mesh: Mesh, max_norm: float) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`.

    After `reduce_gradients`, on every rank. Returns the norm before, (), in float64, the same on
    every rank. TypeError or ValueError for a norm that is not above 0; ValueError for a mesh with
    another axis, and for experts that are sharded over others than mesh.ep.
    """
    require_sharded_over_ep(module, mesh)
    other = [axis for axis, size in mesh.sizes.items() if axis not in ("dp", "ep") and size > 1]
    if other:
        raise ValueError(
            f"{other[0]}={mesh.sizes[other[0]]}: the norm is added up over ep alone, and shards "
            f"along {other[0]} would be missing; make the mesh of dp and ep, or see "
            "labkit.global_norm"
        )
    # After the reduction dp holds copies of everything, so the sum over ep is all of it.
    shared, experts = shared_and_experts(module)
    held = [(p, mesh.ep.size) for p in shared.values()] + [(p, 1) for p in experts.values()]
    gradients = [(p.grad, num_holders) for p, num_holders in held if p.grad is not None]
    return global_norm.clip(gradients, max_norm, mesh.ep)


def require_sharded_over_ep(module: nn.Module, mesh: Mesh) -> None:
    """Raise ValueError for a layer whose experts are on other ranks: those of two would be added
    up."""
    for name, layer in module.named_modules():
        if isinstance(layer, MoE):
            ranks: tuple[int, ...] = (mesh.world.ranks[mesh.world.rank],)
        elif isinstance(layer, ExpertParallelMoE):
            ranks = layer.group.ranks
        else:
            continue
        if ranks != mesh.ep.ranks:
            raise ValueError(
                f"{name or type(layer).__name__}: its experts are sharded over ranks "
                f"{list(ranks)}, and mesh.ep has {list(mesh.ep.ranks)}; pass mesh.ep where the "
                "layer is made (a layer without a group is for an ep of 1)"
            )


@torch.no_grad()
def _reduce(parameters: Iterable[Tensor], group: Group, divisor: int, label: str) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:  # no experts on this rank, nor on its dp neighbours
        return
    flat = flattened(gradients)
    flat /= divisor  # before the sum, which in float16 may overflow where the mean fits
    with group.label(label):
        group.all_reduce(flat, out=flat)
    for gradient, part in parts_of(flat, gradients):
        gradient.copy_(part)

"""A small GPT on real text, trained over dp, tp and pp at once, with ZeRO-1 over dp.

rows        each dp coordinate takes its share of the batch                     own_rows
pipeline    microbatches go through the stages along pp; within a stage         gpt_3d.py
            tp ranks sum their results
reduce      gradients of a rank's parameters, averaged over dp: its fragments   labkit.zero
clip        by the norm over all axes                                           clip_gradients
step        on the fragments; then each rank gathers its parameters over dp     labkit.zero

    7 rows, dp 2 x tp 2 x pp 2     dp 0: rows 0 1 2 3, all four of its ranks
                                   dp 1: rows 4 5 6, all four of its ranks

The four ranks of a dp coordinate are one replica of the model: they work on the same rows, each on
its part of the layers. A sampler with the world's rank and size, as data parallelism has it, would
train on quarters of rows that do not belong together, without any error: sums over tp add up
whatever they are given.

`axis_of` says which axis of a mesh an operation belongs to. A journal names the members of each
operation's group. Those of mesh.tp differ in tp only, and so do those of a part of it (ranks with
copies of a key-value head). What is over all ranks is said apart: the norm, which has a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from labkit import global_norm
from labkit.combined.gpt_3d import CombinedGPT, gather_full_state
from labkit.comm import Group, Operation, Timeline
from labkit.data import Batch, counted
from labkit.global_norm import NORM
from labkit.mesh import Mesh, ranks_along
from labkit.model import GPTConfig
from labkit.pipeline import Pipeline, Row, WeightedLoss, one_f_one_b, plan
from labkit.pipeline.gpt_pp import losses_everywhere, num_counted
from labkit.tensor_parallel import vocab_cross_entropy
from labkit.train import TrainConfig, Trained, fit
from labkit.zero import Zero1Optimizer

ORDER = ("dp", "pp", "tp")
"""Order of the axes, slowest first: tp ranks are neighbours, and dp replicas far apart."""


class CombinedTraining:
    """One rank's model, pipeline and optimizer, and the step that they take together."""

    def __init__(
        self,
        mesh: Mesh,
        config: GPTConfig,
        settings: TrainConfig,
        row: Row = one_f_one_b,
        num_microbatches: int = 4,
        *,
        max_norm: float | None = None,
        layers: Sequence[range] | None = None,
    ) -> None:
        """mesh: with dp, tp and pp. row: a schedule, such as gpipe, or zero_bubble_h1, whose split
        backwards work here as in a pipeline alone. Every rank makes one.

        num_microbatches: of each dp coordinate's share. max_norm: of the whole gradient; None: it
        is not clipped. ValueError: a share with fewer rows than microbatches, and what Pipeline and
        CombinedGPT refuse.
        """
        if sorted(mesh.sizes) != sorted(ORDER):
            raise ValueError(
                f"{mesh!r}: over other axes nothing is reduced here; make it of dp, pp and tp, "
                "with 1 for what is not wanted"
            )
        _require_enough_rows(settings.num_sequences, mesh.dp.size, num_microbatches)
        schedule = plan(row, mesh.pp.size, num_microbatches)
        self.mesh, self.max_norm = mesh, max_norm
        self.model = CombinedGPT(config, schedule, mesh, settings.seed, settings.dtype, layers)
        self.pipeline = Pipeline(
            schedule,
            self.model.stages,
            WeightedLoss(self._loss, num_counted),
            mesh.pp,
            tied=self.model.tied,
        )
        optimizer_class, options = settings.optimizer_class()
        named = self.model.gpt_parameters().items()
        self.optimizer = Zero1Optimizer(named, optimizer_class, mesh.dp, **options)
        self._weight = 1.0

    def step(self, batch: Batch) -> tuple[float | None, float | None]:
        """One step on a global batch, the same on every rank. The timeline names the phases.

        Returns what this replica adds to the mean loss over dp, on the last stage, else None; and
        the norm of the gradient before it was clipped, where it is.
        """
        world, norm = self.mesh.world, None
        loss = self.backward(batch)
        with world.region("reduce"):
            self.optimizer.reduce_gradients()
        if self.max_norm is not None:
            with world.region("clip"):
                norm = clip_gradients(self.model, self.optimizer, self.max_norm).item()
        with world.region("optimizer"):
            self.optimizer.step()
        return loss, norm

    def backward(self, batch: Batch) -> float | None:
        """Forward and backward of this replica's rows: gradients are there, not yet averaged.

        Returns the loss as `step` does.
        """
        share = own_rows(batch, self.mesh)
        self._weight = weight_of(share, batch, self.mesh)
        self.optimizer.zero_grad()
        return self.pipeline.step(share.inputs_BT, share.targets_BT).loss

    def global_losses(self, losses: Sequence[float | None]) -> list[float]:
        """Return the losses of the global batches, on every rank, from `step`'s results on each
        rank."""
        mesh = self.mesh
        of_replica = losses_everywhere(losses, self.pipeline.schedule, mesh.pp)
        return (mesh.dp.all_reduce(of_replica) / mesh.dp.size).tolist()

    def _loss(self, logits_BTv: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean over a microbatch; its replica counts by its targets, see weight_of."""
        vocab = self.model.config.vocab
        total = vocab_cross_entropy(
            logits_BTv.flatten(0, 1), targets_BT.flatten(), vocab, self.mesh.tp
        )
        return total * self._weight / counted(targets_BT).sum().clamp(min=1)


def train(
    group: Group,
    config: GPTConfig,
    settings: TrainConfig,
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    row: Row = one_f_one_b,
    num_microbatches: int = 4,
    max_norm: float | None = None,
    order: Sequence[str] = ORDER,
    layers: Sequence[range] | None = None,
) -> Trained:
    """Run `labkit.train.train_serial` on dp * tp * pp ranks: losses and parameters equal the serial
    ones up to rounding, on every rank.

    run(partial(train, dp=2, tp=2, pp=2), 8, (config, settings)). order: of the axes, slowest first.
    Other arguments as in CombinedTraining.
    ValueError: sizes that do not multiply to the group's, an order without all three axes.
    """
    sizes = {"dp": dp, "tp": tp, "pp": pp}
    mesh = Mesh(group, **{axis: sizes[axis] for axis in order})
    training = CombinedTraining(
        mesh, config, settings, row, num_microbatches, max_norm=max_norm, layers=layers
    )
    steps = fit(training.step, config, settings)
    losses = training.global_losses([loss for loss, _ in steps])
    state = gather_full_state(training.model)
    return Trained(losses, {name: each.cpu() for name, each in state.items()})


def own_rows(batch: Batch, mesh: Mesh) -> Batch:
    """Return the rows of this rank's dp coordinate; the first coordinates have one more where
    needed."""
    return batch.share(mesh.dp.rank, mesh.dp.size)


def weight_of(share: Batch, batch: Batch, mesh: Mesh) -> float:
    """Return the weight of a share's mean, so that the mean over dp is the mean over the batch.

    1 if all shares are equal. Unequal ones count by their targets that are not IGNORED.
    """
    return share.num_targets * mesh.dp.size / max(1, batch.num_targets)


def clip_gradients(model: CombinedGPT, optimizer: Zero1Optimizer, max_norm: float) -> Tensor:
    """Scale the gradients so that their norm, over all parameters once, is at most `max_norm`.

    Fragments of ZeRO-1 are on one rank of dp; model.num_copies() says how many ranks along pp and
    tp hold the same. optimizer: over mesh.dp, of the model's parameters by GPT's names. Every rank
    calls it between backward and step. Returns the norm before, (), in float64, with the same bits
    on every rank. Wire: one number in an all-reduce over all ranks.
    TypeError or ValueError for a norm that is not above 0.
    """
    num_copies = model.num_copies()
    gradients = [(each, num_copies[name]) for name, each in optimizer.named_gradients()]
    return global_norm.clip(gradients, max_norm, model.mesh.world)


def _require_enough_rows(num_rows: int, num_shares: int, num_microbatches: int) -> None:
    """Raise ValueError unless each share has a row for each microbatch."""
    least = num_rows // num_shares
    if least < num_microbatches:
        raise ValueError(
            f"num_sequences={num_rows} over dp={num_shares} leaves shares of {least}, which cannot "
            f"be cut into {num_microbatches} microbatches; give num_sequences="
            f"{num_shares * num_microbatches} or more, or num_microbatches={max(1, least)} or fewer"
        )


OTHER = "other"


def axis_of(operation: Operation, rank: int, sizes: Mapping[str, int]) -> str:
    """Return an axis of the mesh; "norm"; or "other": over several axes, such as a comparison of
    states.

    rank: whose journal it is. sizes: of the mesh's axes, slowest first, as Mesh.sizes.
    """
    if operation.label == NORM:
        return "norm"
    members = set(operation.group)
    for axis in sizes:
        if members <= set(ranks_along(axis, rank, sizes)):
            return axis
    return OTHER


def sent_by_axis(
    operations: Iterable[Operation], rank: int, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Bytes that a rank sent, by axis; axes without any have 0."""
    found = dict.fromkeys([*sizes, "norm", OTHER], 0)
    for operation in operations:
        found[axis_of(operation, rank, sizes)] += operation.sent_bytes
    return found


def within(timeline: Timeline, region: str) -> list[Operation]:
    """Return the operations that a rank began in a region, as `timeline.within(region)` does."""
    return timeline.within(region)

"""Check a pipeline's arguments, its batches, and what its stages and its loss return."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.data import IGNORED, counted
from labkit.pipeline.op import Op, Schedule


def require_same_schedule(schedule: Schedule, tied: Tensor | None, group: Group) -> None:
    """Check that all ranks have one schedule, and that the tied weights are alike, or both None.

    The tied weights are those of the ranks of the first and the last stage. Wire: an all-gather of
    two numbers.
    """
    mine = zlib.crc32(repr((schedule.num_microbatches, schedule.rows)).encode())
    own = 0 if tied is None else zlib.crc32(repr((tuple(tied.shape), tied.dtype)).encode())
    both = group.all_gather(torch.tensor([mine, own], device=group.device)).view(-1, 2)
    plans, ties = both.t().tolist()
    others = [rank for rank, number in enumerate(plans) if number != mine]
    if others:
        raise ValueError(
            f"ranks {others} have planned another schedule than rank {group.rank}: its "
            f"{schedule.name!r} of {schedule.num_microbatches} microbatches; plan the same on all"
        )
    first, last = schedule.rank_of[0], schedule.rank_of[schedule.num_stages - 1]
    if ties[first] != ties[last]:
        given = {rank: "a weight" if ties[rank] else "none" for rank in (first, last)}
        raise ValueError(
            f"tied: {given[first]} on rank {first} of the first stage and {given[last]} on rank "
            f"{last} of the last, or weights of other shapes or dtypes: a step sums their "
            "gradients, so pass the same weight on both ranks, or on neither"
        )


def stages(given: Mapping[int, nn.Module], schedule: Schedule, group: Group) -> None:
    """Check that the schedule is for as many ranks as the group, and this rank has its stages."""
    if schedule.num_ranks != group.size:
        raise ValueError(
            f"a schedule of {schedule.num_ranks} ranks for a group of {group.size}; plan it with "
            f"num_ranks={group.size}"
        )
    wanted = schedule.stages_of(group.rank)
    if sorted(given) != wanted:
        raise ValueError(
            f"stages={sorted(given)} on rank {group.rank}, which holds {wanted} of this schedule; "
            "pass a dict from these numbers to modules"
        )


def batch(inputs: Tensor, targets: Tensor, num_microbatches: int) -> None:
    """Check that there are as many inputs as targets, and a row for each microbatch."""
    for name, x in (("inputs", inputs), ("targets", targets)):
        if x.grad_fn is not None:
            raise ValueError(
                f"{name} need a gradient, which a pipeline does not propagate: put the layers that "
                "compute them into the first stage, or pass them detached"
            )
    if len(inputs) != len(targets):
        raise ValueError(
            f"{len(inputs)} rows of inputs and {len(targets)} of targets: give equally many"
        )
    if len(inputs) < num_microbatches:
        raise ValueError(
            f"a batch of {len(inputs)} rows cannot be cut into {num_microbatches} microbatches; "
            f"plan the schedule with num_microbatches={len(inputs)} or fewer"
        )


def rows_count_alike(targets: Sequence[Tensor]) -> None:
    """Check that every microbatch has the same share of targets that count: a loss over rows
    weights the microbatches' means by rows."""
    if targets[0].dtype not in (torch.int64, torch.int32):
        return
    rows = [len(part) for part in targets]
    real = [int(counted(part).sum()) for part in targets]
    if any(real[0] * rows[n] != real[n] * rows[0] for n in range(1, len(rows))):
        raise ValueError(
            f"the microbatches of {rows} rows have {real} targets that are not {IGNORED}, but this "
            "loss counts rows: the mean of their means would not be the mean over the batch. "
            "Pass token_loss, or WeightedLoss(loss, weight), where weight(targets) is the number "
            "of targets that the loss is a mean over, or of rows: len"
        )


def output(y: Any, x: Tensor, op: Op, stage: nn.Module) -> None:
    """Check that a stage returns one tensor that needs a gradient and has the input's rows.

    A first stage whose parameters are all frozen needs no gradient.
    """
    if not isinstance(y, Tensor):
        raise TypeError(
            f"stage {op.stage} returned {type(y).__name__}: a stage returns one tensor; join "
            "several into one"
        )
    if y.dim() == 0 or len(y) != len(x):
        raise ValueError(
            f"stage {op.stage} took {len(x)} rows and returned {tuple(y.shape)}: dim 0 must stay "
            "the rows of the microbatch"
        )
    trains = x.requires_grad or any(each.requires_grad for each in stage.parameters())
    if not y.requires_grad and (trains or not torch.is_grad_enabled()):
        raise ValueError(
            f"stage {op.stage} returned a tensor that needs no gradient, so backward cannot go "
            "through it; leave out no_grad() and detach() in the stage"
        )


def loss(value: Any) -> None:
    """Check that a loss is one number."""
    if not isinstance(value, Tensor) or value.dim():
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"loss returned {shape}: return one number, the mean over the rows of a microbatch"
        )
    if not value.requires_grad:
        raise ValueError("loss returned a number that needs no gradient; leave out detach()")


class MeanLossCheck:
    """Checks that a loss of two microbatches together is the mean of their two losses.

    This does not hold for a sum, a mean weighted by classes, or a loss that compares rows with each
    other: cut into microbatches, their gradient is not that of the whole batch. The check computes
    the loss of the first step's first two microbatches together, without a gradient.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._loss = loss
        self._first: tuple[Tensor, Tensor, Tensor] | None = None
        self._is_done = False

    def look_at(self, y: Tensor, targets: Tensor, mean: Tensor) -> None:
        """Take a microbatch's output, targets and loss. Check with the second one, once."""
        if self._is_done:
            return
        if self._first is None:
            self._first = y, targets, mean
            return
        (y_0, targets_0, mean_0), self._first, self._is_done = self._first, None, True
        first, second = mean_0.item(), mean.item()
        both = self._of(torch.cat([y_0, y]), torch.cat([targets_0, targets]))
        expected = (len(y_0) * first + len(y) * second) / (len(y_0) + len(y))
        tolerance = torch.finfo(mean.dtype if y.is_complex() else y.dtype).eps ** 0.5
        if not abs(both - expected) > tolerance * max(abs(first), abs(second), abs(both)):
            return  # also for nan
        if self._of(y, targets) != second:
            return  # the loss draws random numbers: it differs each time
        raise ValueError(
            f"loss returned {first:.4g} and {second:.4g} for two microbatches of {len(y_0)} and "
            f"{len(y)} rows, and {both:.4g} for both together; a mean over rows gives "
            f"{expected:.4g}. The step would have another gradient than one process with the whole "
            "batch. Give a mean: reduction='mean'; for weights of classes "
            "WeightedLoss(loss, weight), where weight(targets) is the sum of their weights. A loss "
            "that compares rows with each other cannot be cut into microbatches"
        )

    def _of(self, y: Tensor, targets: Tensor) -> float:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return float(self._loss(y, targets))

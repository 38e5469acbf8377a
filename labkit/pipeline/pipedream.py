"""PipeDream: a pipeline that never drains, at the price of stale weights.

    rank 0   F0 F1 F2       B0 F3    B1 F4    B2 F5     each B is followed by an update of its stage
    rank 1      F0 F1    B0 F2 B1 F3 B2 F4 B3 ...
    rank 2         F0 B0 F1 B1 F2 B2 F3 B3 F4 ...       no flush: the bubble is the first fill

The order is 1F1B's. A microbatch's forward uses the newest weights. On rank r, p - r - 1 updates
follow before its backward. So that forward and backward use the same weights, the stage keeps
(stashes) a version for each microbatch in flight. Different stages still use different versions:
no model ever had the weights for which a gradient is computed.

    microbatch i, stage s: forward and backward with version max(0, i - (p - 1 - s)); its update
    makes version i + 1

Memory: besides the weights a copy of each version in flight, at most p - s, which 1F1B with a flush
does not need. Do not use activation checkpointing: it would recompute with the newest weights.
Papers: Harlap et al., PipeDream, arXiv:1806.03377, and Narayanan et al., SOSP 2019; PipeDream-2BW
and the flush: Narayanan et al., arXiv:2006.09503.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from torch.func import functional_call

from labkit.comm import Group
from labkit.optimizer import Optimizer
from labkit.pipeline.executor import Loss, Pipeline, Work
from labkit.pipeline.op import Kind, Op, Schedule, require_schedule

_Version = dict[str, Tensor]


def weight_versions(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Return (stage, microbatch) -> number of updates of the stage before this forward.

    An update follows each backward, so this is a count of backwards in the stage's order.
    """
    require_schedule(schedule)
    versions = {}
    for row in schedule.rows:
        num_updates: dict[int, int] = {}
        for op in row:
            if op.kind is Kind.F:
                versions[op.stage, op.microbatch] = num_updates.get(op.stage, 0)
            elif op.kind is not Kind.I:
                num_updates[op.stage] = num_updates.get(op.stage, 0) + 1
    return versions


class PipeDream(Pipeline):
    """A Pipeline whose stages are updated after each microbatch's backward, with weight stashing.

    make_optimizer: parameters -> the optimizer of one stage. `step` takes a stream of microbatches,
    and fills and drains once. Each microbatch's gradient is that of its own mean loss. Two stages
    must not share a tied weight: the copies would drift apart. Buffers are not stashed.
    num_versions: stage -> the most versions of its weights that were alive at once, measured.
    ValueError for a schedule that splits backwards: its updates would come between I and W.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        make_optimizer: Callable[[list[nn.Parameter]], Optimizer],
        group: Group | None = None,
    ) -> None:
        super().__init__(schedule, stages, loss, group)
        if any(op.kind is Kind.I for row in schedule.rows for op in row):
            raise ValueError(
                f"schedule {schedule.name!r} splits backwards; PipeDream updates after a whole B: "
                "plan it with one_f_one_b"
            )
        self.optimizers = {
            stage: make_optimizer(list(module.parameters())) for stage, module in stages.items()
        }
        self.num_versions = dict.fromkeys(stages, 0)

    def _work(self, inputs: Tensor, targets: Tensor) -> Work:
        return _StashingWork(self, inputs, targets)


class _StashingWork(Work):
    def __init__(self, pipeline: PipeDream, inputs: Tensor, targets: Tensor) -> None:
        device = pipeline.group.device
        super().__init__(pipeline.schedule, pipeline.stages, pipeline.loss, inputs, targets, device)
        self._pipeline = pipeline
        self._latest: dict[int, _Version] = {}  # stage -> the version that a forward would use
        self._stashed: dict[tuple[int, int], _Version] = {}  # from F to B

    def _shares_of(self, targets: Sequence[Tensor], loss: Loss) -> list[float]:
        return [1.0] * len(targets)  # each is a batch of its own

    def mean_loss(self) -> float | None:
        """Return the mean of the microbatches' losses on the last stage's rank; None elsewhere."""
        losses = self.losses()
        return sum(losses) / len(losses) if losses else None

    def _output(self, op: Op, x: Tensor) -> Tensor:
        if op.stage not in self._latest:
            self._latest[op.stage] = _copy(self._stages[op.stage])
        version = self._stashed[op.stage, op.microbatch] = self._latest[op.stage]
        alive = {id(each) for (stage, _), each in self._stashed.items() if stage == op.stage}
        most = self._pipeline.num_versions
        most[op.stage] = max(most[op.stage], len(alive))
        output: Tensor = functional_call(self._stages[op.stage], version, (x,))
        return output

    def _backward(self, op: Op, taken: Tensor | None) -> Tensor | None:
        made = super()._backward(op, taken)
        version = self._stashed.pop((op.stage, op.microbatch))
        for name, parameter in self._stages[op.stage].named_parameters():
            parameter.grad, version[name].grad = version[name].grad, None
        self._pipeline.optimizers[op.stage].step()
        self._latest.pop(op.stage, None)  # the next forward copies the updated weights
        return made


def _copy(stage: nn.Module) -> _Version:
    return {
        name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
        for name, parameter in stage.named_parameters()
    }


def stale_weights(schedule: Schedule) -> dict[int, int]:
    """Return stage -> by how many updates its weights are stale at a microbatch's backward.

    This is the maximum over the microbatches: p - 1 - s in the steady state of 1F1B.
    """
    versions = weight_versions(schedule)
    behind = dict.fromkeys(schedule.rank_of, 0)
    for (stage, microbatch), version in versions.items():
        behind[stage] = max(behind[stage], microbatch - version)
    return behind

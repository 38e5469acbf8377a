"""What happens on a rank while gradients are reduced: bytes at the peak, arrivals, hooks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.comm.operation import Region
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.gradient_modules import module_of, num_hooks
from labkit.grade.graders.live_storages import LiveStorages
from labkit.grade.graders.zero2_inputs import budget_bytes, mean_loss
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

ARRIVED = "\x02arrived"
"""A region that begins when a gradient is there."""


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    peak_bytes: int
    """Of all storages that were made meanwhile."""
    most_gradient_bytes: int
    """In the parameters' .grad together, as one more arrives."""
    segment_storage_bytes: int
    """Of the memory in which the segments lie that were returned."""
    num_gradients_left: int
    num_hooks_left: int
    num_changed: int
    """Parameters with other values than before."""
    num_frozen: int
    num_microbatches_left: int
    """In the list that was passed."""
    segments: list[Tensor]
    """What was returned; empty where that is no list of tensors."""


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: the call; numbers of what was seen, then the segments."""
    parameters, names, microbatches = arguments
    module = module_of(parameters)
    its = list(module.parameters())
    gradient_bytes = [0]

    def on_arrival(_: Tensor) -> None:
        gradient_bytes.append(sum(p.grad.nbytes for p in its if p.grad is not None))
        with group.region(ARRIVED):
            pass

    # Before the hooks of the code under test, and so they are called first.
    ours = [p.register_post_accumulate_grad_hook(on_arrival) for p in its]
    buckets = [[module.get_parameter(name) for name in bucket] for bucket in names]
    inputs = [x for microbatch in microbatches for x in microbatch]
    passed = list(microbatches)
    numels = [sum(parameter.numel() for parameter in bucket) for bucket in buckets]
    with LiveStorages([*its, *inputs], group.gate, budget_bytes(numels, group.size)) as live:
        returned = function(
            buckets, lambda microbatch: mean_loss(module, microbatch), passed, group
        )
    is_list = isinstance(returned, list | tuple) and all(map(is_plain_tensor, returned))
    segments = list(returned) if is_list else []
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in segments}
    numbers = (
        live.peak_bytes,
        max(gradient_bytes),
        sum(storages.values()),
        sum(p.grad is not None for p in its),
        num_hooks(module) - len(ours),
        sum(not torch.equal(module.get_parameter(name), x) for name, x in parameters.items()),
        sum(not p.requires_grad for p in its),
        len(passed),
    )
    return [torch.tensor(numbers), *segments]


def seen_on(evidence: CaseEvidence) -> list[Seen]:
    """By rank, what `watched` has told, in the driver."""
    seen = []
    for record in evidence.completed:
        numbers: list[int] = record.outputs[0].tolist()
        peak, gradients, storages, *left = numbers
        num_gradients, num_hooks, num_changed, num_frozen, num_microbatches = left
        seen.append(
            Seen(
                peak,
                gradients,
                storages,
                num_gradients,
                num_hooks,
                num_changed,
                num_frozen,
                num_microbatches,
                record.outputs[1:],
            )
        )
    return seen


def arrivals(evidence: CaseEvidence, rank: int) -> Sequence[Region]:
    """The gradients of all microbatches, in order."""
    return [each for each in evidence.regions[rank] if each.name == ARRIVED]

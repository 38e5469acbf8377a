"""What happens on a rank in sequence_parallel_norm: tensors of all rows, hooks, gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import is_same
from labkit.grade.graders.sequence_long import LongTensors, long_bytes_of
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

FORWARD, BACKWARD = "\x02forward", "\x02backward"
"""Regions of a rank's journal."""

_NUM_TOLD = 6  # tensors of each step
_NUM_CHANGEABLE = 3


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a step."""

    has_form: bool
    """Whether two tensors came back, in a tuple or a list; else nothing else was seen."""
    flows: tuple[bool, bool]
    """Whether the residual, and x, need a gradient."""
    num_kept: int
    """Tensors of all rows that forward left in memory, besides z_ND and x_ND."""
    most: tuple[int, int]
    """Tensors of all rows at once, in forward and in backward, besides what is passed."""
    num_hooks: int
    """Left on what was passed."""
    changed: tuple[bool, ...]
    """Whether z_ND, r_nD, weight_D have other values than before."""
    residual_nD: Tensor
    x_ND: Tensor
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None]
    """Of z_ND, r_nD and weight_D; of the weight over all steps up to here."""


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: forward and backward, step by step; what was seen of each step."""
    weight_D, steps = arguments
    weight = weight_D.clone().requires_grad_()
    told: list[Tensor] = []
    for z_ND, r_nD, *come_in in steps:
        long_bytes = long_bytes_of(z_ND, group.size)
        leaves = [z_ND.clone().requires_grad_(), r_nD.clone().requires_grad_(), weight]
        with LongTensors([*leaves, *come_in], group.gate, long_bytes) as forward:
            with group.region(FORWARD):
                returned = function(*leaves, group)
            if not _has_form(returned):
                return [*told, torch.tensor([False]), *[torch.empty(0)] * (_NUM_TOLD - 1)]
            num_kept = _num_kept(forward, returned[1])
        most_backward = 0
        if list(map(_form, returned)) == list(map(_form, come_in)):
            known = [*leaves, *come_in, *returned]
            with LongTensors(known, group.gate, long_bytes) as backward, group.region(BACKWARD):
                _go_back(returned, come_in)
            most_backward = backward.most
        befores = (z_ND, r_nD, weight_D)
        numbers = [
            True,
            *(x.requires_grad for x in returned),
            num_kept,
            forward.most,
            most_backward,
            _num_hooks(leaves),
            *(not is_same(leaf, x) for leaf, x in zip(leaves, befores, strict=True)),
        ]
        gradients = [_gradient_of(leaf) for leaf in leaves]
        told += [torch.tensor(numbers), *(x.detach() for x in returned), *gradients]
    return told


def _gradient_of(leaf: Tensor) -> Tensor:
    """A tensor without a dim stands for none."""
    if leaf.grad is None:
        return torch.empty(())
    return leaf.grad.clone() if is_plain_tensor(leaf.grad) else torch.empty(0)


def _form(x: Tensor) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


def _has_form(returned: object) -> bool:
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    return is_pair and all(map(is_plain_tensor, returned))  # type: ignore[call-overload]


def _num_kept(live: LongTensors, x_ND: Tensor) -> int:
    """Long storages other than that of x_ND; what only circles hold is not kept."""
    _ = live.nbytes
    of_x = x_ND.untyped_storage()._cdata
    return live.settled(lambda: len({each._cdata for each in live.alive()} - {of_x}), 0)


class _Loss(torch.autograd.Function):
    """Of which the gradients are those that come in.

    Not torch.autograd.backward(returned, come_in): that imports sympy, nearly a second.
    """

    @staticmethod
    def forward(ctx: Any, residual_nD: Tensor, x_ND: Tensor, *come_in: Tensor) -> Tensor:
        ctx.come_in = come_in
        return x_ND.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (*ctx.come_in, None, None)


def _go_back(returned: Sequence[Tensor], come_in: Sequence[Tensor]) -> None:
    loss = _Loss.apply(*returned, *come_in)
    if loss.requires_grad:
        loss.backward()


def _num_hooks(leaves: Sequence[Tensor]) -> int:
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return sum(len(getattr(leaf, name, None) or ()) for leaf in leaves for name in names)


def seen_in(outputs: Sequence[Tensor]) -> list[Seen]:
    """By step, what `watched` has told, in the driver."""
    seen = []
    for begin in range(0, len(outputs), _NUM_TOLD):
        numbers, residual_nD, x_ND, *gradients = outputs[begin : begin + _NUM_TOLD]
        has_form, *rest = numbers.tolist()
        if not has_form:
            rest = [0] * (6 + _NUM_CHANGEABLE)
        of_residual, of_x, num_kept, most_forward, most_backward, num_hooks, *changed = rest
        z, r, weight = (None if x.dim() == 0 else x for x in gradients)
        seen.append(
            Seen(
                bool(has_form),
                (bool(of_residual), bool(of_x)),
                num_kept,
                (most_forward, most_backward),
                num_hooks,
                tuple(map(bool, changed)),
                residual_nD,
                x_ND,
                (z, r, weight),
            )
        )
    return seen


def operations_of(evidence: CaseEvidence, rank: int, name: str) -> list[list[Operation]]:
    """By step, what the rank posted in its regions of that name."""
    regions = [each for each in evidence.regions[rank] if each.name == name]
    return [
        [
            operation
            for operation in evidence.operations[rank]
            if region.start_s <= operation.posted_s <= (region.end_s or operation.posted_s)
        ]
        for region in regions
    ]

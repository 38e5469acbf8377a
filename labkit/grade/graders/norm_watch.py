"""What happens on a rank while gradients are clipped: the call, and what it leaves behind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import plain_data
from labkit.grade.evidence import CaseEvidence
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup
from labkit.grade.watched_mesh import WatchedMesh


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    norm: float | None
    """None where what came back is no number."""
    type: str
    """Of what came back."""
    num_moved: int
    """Parameters whose .grad is another tensor than before, or lies elsewhere."""
    num_made: int
    """Parameters that have a gradient and had none."""
    num_changed: int
    """Parameters that are other ones than before, or have other values."""
    gradients: list[Tensor]
    """Afterwards, of those that had one, in order."""


def clipped(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: the call; the norm, its type, numbers of what was seen, the gradients."""
    sizes, gradients, copied, tied, max_norm = arguments
    mesh = WatchedMesh(group, sizes)
    parameters = [_parameter(*each) for each in zip(gradients, copied, tied, strict=True)]
    given = [(each, each.grad, _address(each.grad)) for each in parameters]
    returned = function(parameters, max_norm, mesh)
    mesh.end_case()
    had = [(each, grad, at) for each, grad, at in given if grad is not None]
    numbers = (
        sum(each.grad is not grad or _address(grad) != at for each, grad, at in had),
        sum(each.grad is not None for each, grad, _ in given if grad is None),
        sum(bool(each.detach().any()) for each, _, _ in given)
        + (len(parameters) != len(given))
        + sum(each is not one for each, (one, _, _) in zip(parameters, given)),
    )
    return [
        _number(returned),
        torch.tensor(list(type(returned).__name__.encode()), dtype=torch.uint8),
        torch.tensor(numbers),
        *(grad for _, grad, _ in had),
    ]


def _parameter(gradient: Tensor | None, copied_over: list[str], is_tied: bool) -> nn.Parameter:
    """With zeros for values, so that a change is seen."""
    parameter = nn.Parameter(torch.zeros(3) if gradient is None else torch.zeros_like(gradient))
    parameter.grad = None if gradient is None else gradient.clone()
    parameter.copied_over, parameter.is_tied = tuple(copied_over), is_tied  # type: ignore
    return parameter


def _address(gradient: Tensor | None) -> int:
    return 0 if gradient is None else gradient.data_ptr()


def _number(returned: Any) -> Tensor:
    """As float64, (1,); or (0,) where it is none."""
    returned = plain_data.number(returned)
    if type(returned) in (int, float):
        return torch.tensor([returned], dtype=torch.float64)
    is_one = is_plain_tensor(returned) and returned.numel() == 1 and not returned.is_complex()
    return returned.detach().double().reshape(1) if is_one else torch.empty(0)


def seen_on(evidence: CaseEvidence) -> list[Seen]:
    """By rank, what `clipped` has told, in the driver."""
    seen = []
    for record in evidence.completed:
        norm, its_type, numbers, *gradients = record.outputs
        value = float(norm) if norm.numel() else None
        name = bytes(its_type.tolist()).decode()
        moved, made, changed = map(int, numbers.tolist())
        seen.append(Seen(value, name, moved, made, changed, gradients))
    return seen

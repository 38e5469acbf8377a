"""What a rank runs of loss_scaler: several steps, and what is recorded of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit.grade.graders.scaler_inputs import Given
from labkit.grade.watched_group import WatchedGroup

Tensor = torch.Tensor
_UNKNOWN = float("nan")


@dataclass(frozen=True)
class Step:
    """What came of one step on one rank."""

    num_updates: int
    is_made: float
    """As the function has said: 1, 0, or nan where that was no boolean."""
    scale: float
    num_good_steps: float
    is_form: bool
    """Whether update was called with a list of tensors, in the shapes of the gradients."""
    updated_with: Tensor
    """All numbers of the last call, flat."""

    @property
    def parts(self) -> list[Tensor]:
        """As it leaves the rank."""
        told = [self.num_updates, self.is_made, self.scale, self.num_good_steps, self.is_form]
        return [torch.tensor(told, dtype=torch.float64), self.updated_with]

    @staticmethod
    def of(parts: Sequence[Tensor]) -> "Step":
        """As it comes to the driver."""
        num, is_made, scale, good, is_form = parts[0].tolist()
        return Step(int(num), is_made, scale, good, bool(is_form), parts[1])

    def is_same(self, other: "Step", *, but_for_what_is_said: bool = False) -> bool:
        """Whether both have done, and said, the same."""
        mine = (self.num_updates, self.scale, self.num_good_steps, self.is_form)
        its = (other.num_updates, other.scale, other.num_good_steps, other.is_form)
        return (
            mine == its
            and (but_for_what_is_said or self.is_made == other.is_made)
            and self.updated_with.dtype == other.updated_with.dtype
            and torch.equal(self.updated_with.nan_to_num(7.0), other.updated_with.nan_to_num(7.0))
        )


def training(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: backward and the code under test, step by step."""
    given = Given(*arguments)
    scaler, parts = dict(given.scaler), []
    for number in range(len(given.slopes)):
        gradients = given.gradients(number, scaler["scale"])
        parts += _one_step(function, scaler, gradients, group).parts
    return parts


def _one_step(
    function: Callable[..., Any],
    scaler: dict[str, Any],
    gradients: list[Tensor],
    group: WatchedGroup,
) -> Step:
    shapes = [each.shape for each in gradients]
    calls: list[list[Any]] = []

    def update(unscaled: Any) -> None:
        """The optimizer: keeps what it is given, as it is now."""
        is_list = isinstance(unscaled, list | tuple)  # an optimizer may go through it twice
        calls.append([_copy(each) for each in unscaled] if is_list else [None])

    is_made = function(scaler, gradients, update, group)
    return Step(
        len(calls),
        float(is_made) if isinstance(is_made, bool) else _UNKNOWN,
        _number(scaler.get("scale")),
        _number(scaler.get("num_good_steps")),
        all([_shape(each) for each in call] == shapes for call in calls),
        flat(calls[-1] if calls else []),
    )


def flat(tensors: Sequence[Any]) -> Tensor:
    """All numbers in a row; those that are no tensors left out."""
    numbers = [each.flatten() for each in tensors if isinstance(each, Tensor)]
    return torch.cat(numbers) if numbers else torch.empty(0)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else None


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else _UNKNOWN

"""A dynamic loss scale: gradients that float16 would lose, and a step that is skipped for all.

    loss  --* S-->  backward in float16  --> S g  --/ S, in float32-->  g  --> clip, step

Wire: with a group one number, the maximum of found_inf, in an all-reduce per step: all skip or
none. (After DDP's all-reduce an inf is everywhere by itself; of a shard only one rank may see it.)
Paper: Micikevicius et al., "Mixed precision training", arXiv:1710.03740.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group
from labkit.optimizer import Optimizer


class LossScaler:
    """A dynamic loss scale.

        scaler.scale(loss).backward()
        gradients = optimizer.reduce_gradients()
        scaler.unscale(gradients)              only where something looks at them before the step
        optimizer.clip_gradients(1.0)
        scaler.step(optimizer, gradients)

    Plain data in `state_dict`, so that a run that goes on has the scale it had.
    """

    def __init__(
        self,
        initial: float = 2.0**16,
        *,
        growth: float = 2.0,
        backoff: float = 0.5,
        growth_interval: int = 2000,
        group: Group | None = None,
    ) -> None:
        """growth_interval: steps without an overflow until the scale grows. group: ranks that must
        agree whether to skip; None: this one alone. TypeError, ValueError for factors that do not
        grow, or back off, and for what is no group.
        """
        self.value = arguments.number("initial", initial, "a scale above 0, such as 2**16", above=0)
        self._growth = arguments.number("growth", growth, "a factor of 1 or more", least=1)
        self._backoff = arguments.number(
            "backoff", backoff, "a factor above 0 and below 1", above=0, below=1
        )
        self._growth_interval = arguments.whole("growth_interval", growth_interval, "steps, from 1")
        if group is not None and not hasattr(group, "all_reduce"):
            raise TypeError(f"group={group!r:.60}: give a Group, or None for this rank alone")
        self._group = group
        self._num_good_steps = 0
        self.num_skipped = 0
        self._found_inf: bool | None = None
        """In gradients that are divided, and wait for their step; None: there are none."""

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, for backward; in float32, whose range it does not leave."""
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss={loss!r:.60}: give the tensor on which backward is called")
        return loss.float() * self.value

    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divide the gradients by the scale, before `step`, which then does not do it again.

        Returns whether all are finite, on all ranks; otherwise they are left as they are, and
        `step` will skip. RuntimeError the second time before a step: they would be divided twice.
        """
        if self._found_inf is not None:
            raise RuntimeError(
                "these gradients are divided by the scale already: call unscale once before each "
                "step, or leave it to step"
            )
        gradients = list(gradients)
        self._found_inf = self._anywhere(not all_finite(gradients))
        if not self._found_inf:
            for gradient in gradients:
                gradient.div_(self.value)
        return not self._found_inf

    def step(self, optimizer: Optimizer, gradients: Iterable[Tensor]) -> bool:
        """Divide the gradients by the scale and step; or skip, where one is inf or nan.

        gradients: what the optimizer will use, in the dtype in which they are divided: float32
        keeps what float16 would lose again. Returns whether a step was made. All ranks of the group
        do the same: one that overflows alone would leave the others with other parameters.
        """
        if self._found_inf is None:
            self.unscale(gradients)
        found_inf, self._found_inf = bool(self._found_inf), None
        if not found_inf:
            optimizer.step()
        self.update(found_inf)
        return not found_inf

    def update(self, found_inf: bool) -> None:
        """The next scale. RuntimeError where it would leave float32's range: none helps then."""
        if found_inf:
            self.num_skipped += 1
            self._num_good_steps = 0
            if self.value * self._backoff < torch.finfo(torch.float32).tiny:
                raise RuntimeError(
                    f"the scale is down to {self.value:.2g}, and gradients are still inf or nan: "
                    "it is not the scale. Look for them in the loss, the inputs and the weights"
                )
            self.value *= self._backoff
            return
        self._num_good_steps += 1
        if self._num_good_steps >= self._growth_interval:
            self._num_good_steps = 0
            grown = self.value * self._growth
            self.value = grown if math.isfinite(grown) else self.value

    def _anywhere(self, found_inf: bool) -> bool:
        if self._group is None:
            return found_inf
        flag = torch.tensor([float(found_inf)], device=self._group.device)
        with self._group.label("overflow"):
            return bool(self._group.all_reduce(flag, "max").item())

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on."""
        return {
            "value": self.value,
            "num_good_steps": self._num_good_steps,
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. KeyError for a state that lacks something, ValueError for a scale or a
        count that cannot be; then nothing is changed.
        """
        value = arguments.number("value", state["value"], "a scale above 0", above=0)
        counts = [
            arguments.whole(name, state[name], "a count of steps", least=0)
            for name in ("num_good_steps", "num_skipped")
        ]
        self.value, (self._num_good_steps, self.num_skipped) = value, counts


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no number is inf or nan. A GPU is waited for once, not for every tensor.

    TypeError for what is no tensor, such as the gradient of a parameter that has none.
    """
    tensors = list(tensors)
    if strangers := [x for x in tensors if not isinstance(x, Tensor)]:
        raise TypeError(
            f"{strangers[0]!r:.60} among the gradients: leave out parameters whose .grad is None"
        )
    rows = [x.coalesce().values() if x.is_sparse else x.detach() for x in tensors]
    # The largest magnitude is inf or nan where a number is. A sum could overflow by itself.
    peaks = [torch.linalg.vector_norm(row, torch.inf).isfinite() for row in rows if row.numel()]
    return not peaks or bool(torch.stack(peaks).all().item())

"""Training in 16 bits: fp16 with a loss scale, bf16 with float32 master weights.

                 exponent  fraction    largest     smallest normal    smallest above 0
    float32         8         23       3.4e38         1.2e-38             1.4e-45
    bfloat16        8          7       3.4e38         1.2e-38             9.2e-41
    float16         5         10       65504          6.1e-5              6.0e-8

Float16 reaches down to 6e-8 only, and many gradients are smaller: they underflow to 0. So
LossScaler multiplies the loss by a scale S before backward, every gradient is S times as large, and
is divided by S in float32 before it is used. S should be as large as possible, and must not
overflow:

    loss  --* S-->  backward in float16  --> S g  --/ S, in float32-->  g  --> clip, step

    a gradient is inf or nan      skip the step, S = S / 2
    2,000 steps without one       S = 2 S

Clipping, and all else that looks at the size of gradients, must see them after the division:
`unscale`.

Bfloat16 has float32's range and needs no scale, but 7 bits of fraction: w + update is w again where
the update is below half the distance to w's neighbour, w/512 to w/256. So MasterWeights keeps a
float32 copy of the parameters, which takes the updates, and the model gets it rounded after each
step. Float16, with 10 bits, needs masters as well.

Wire: with a group one number, the maximum of found_inf, in an all-reduce per step: all skip or
none. (After DDP's all-reduce an inf is everywhere by itself; of a shard only one rank may see it.)
Papers: Micikevicius et al., "Mixed precision training", arXiv:1710.03740; Kalamkar et al., "A study
of BFLOAT16 for deep learning training", arXiv:1905.12322.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group
from labkit.optimizer import MASTER, Optimizer, OwnedFragment, load_states, states_of

__all__ = ["LossScaler", "MasterWeights", "all_finite"]

_GROWTH, _BACKOFF = 2.0, 0.5  # factors of the scale


class LossScaler:
    """A dynamic loss scale.

        scaler.scale(loss).backward()
        gradients = optimizer.reduce_gradients()
        scaler.unscale(gradients)              only where something looks at them before the step
        optimizer.clip_gradients(1.0)
        scaler.step(optimizer, gradients)

    `state_dict` is plain data, so that a resumed run has the same scale.
    """

    def __init__(
        self,
        initial: float = 2.0**16,
        *,
        growth_interval: int = 2000,
        group: Group | None = None,
    ) -> None:
        """growth_interval: steps without an overflow until the scale grows. group: ranks that must
        agree whether to skip; None: this one alone. TypeError, ValueError for what is
        no scale or no group.
        """
        self.value = arguments.number("initial", initial, "a scale above 0, such as 2**16", above=0)
        self._growth_interval = arguments.whole("growth_interval", growth_interval, "steps, from 1")
        self._group = group
        self._num_good_steps = 0
        self.num_skipped = 0
        self._found_inf: bool | None = None
        """In gradients that are divided, and wait for their step; None: there are none."""

    def scale(self, loss: Tensor) -> Tensor:
        """Return the scaled loss for backward, in float32, whose range it does not leave."""
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
        """The next scale. RuntimeError if it would leave float32's range: none helps then."""
        if found_inf:
            self.num_skipped += 1
            self._num_good_steps = 0
            if self.value * _BACKOFF < torch.finfo(torch.float32).tiny:
                raise RuntimeError(
                    f"the scale is down to {self.value:.2g}, and gradients are still inf or nan: "
                    "it is not the scale. Look for them in the loss, the inputs and the weights"
                )
            self.value *= _BACKOFF
            return
        self._num_good_steps += 1
        if self._num_good_steps >= self._growth_interval:
            self._num_good_steps = 0
            grown = self.value * _GROWTH
            self.value = grown if math.isfinite(grown) else self.value

    def _anywhere(self, found_inf: bool) -> bool:
        if self._group is None:
            return found_inf
        flag = torch.tensor([float(found_inf)], device=self._group.device)
        with self._group.label("overflow"):
            return bool(self._group.all_reduce(flag, "max").item())

    def state_dict(self) -> dict[str, Any]:
        """State that the next steps depend on."""
        return {
            "value": self.value,
            "num_good_steps": self._num_good_steps,
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. KeyError for a state that lacks something; then nothing is changed."""
        counts = state["num_good_steps"], state["num_skipped"]
        self.value, (self._num_good_steps, self.num_skipped) = state["value"], counts


class MasterWeights:
    """Float32 copies of 16-bit parameters, which the optimizer updates in their place.

        model (bf16)  --backward-->  .grad (bf16)  --float32-->  master.grad
                      <--rounded---                              master  <-- optimizer

    Takes 4 B per parameter besides, and 4 B for float32 gradients while a step is made.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        make_optimizer: Callable[[list[Tensor]], Optimizer],
    ) -> None:
        """parameters: of the model, each once. make_optimizer: from masters to their optimizer.

        ValueError for a parameter of more than 32 bits. One that is given twice has one master.
        """
        given = list({id(parameter): parameter for parameter in parameters}.values())
        for parameter in given:
            if parameter.itemsize > 4:
                raise ValueError(
                    f"a parameter is {parameter.dtype}, of which a float32 master would lose digits"
                )
        self.parameters = [p for p in given if p.requires_grad]
        self.masters = [p.detach().float().clone().requires_grad_() for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    def zero_grad(self) -> None:
        """Forget the gradients, of both."""
        for each in (*self.parameters, *self.masters):
            each.grad = None

    def step(self, scaler: LossScaler | None = None) -> bool:
        """Gradients to float32, the optimizer's step on the masters, and the model rounded from
        them. Whether a step was made: a scaler may skip it. RuntimeError if no parameter has a
        gradient, and there is a scaler, which would count a good step.
        """
        gradients = []
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            if master.grad is not None:
                gradients.append(master.grad)
        if scaler is not None and not gradients:
            raise RuntimeError(
                "no parameter has a gradient: call backward on the scaled loss first"
            )
        if scaler is None:
            self.optimizer.step()
            is_made = True
        else:
            is_made = scaler.step(self.optimizer, gradients)
        if is_made:
            self._round()
        for master in self.masters:
            master.grad = None
        return is_made

    def fragments(self) -> list[OwnedFragment]:
        """Return the masters, which the optimizer updates, and its states, for a checkpoint."""
        pairs = zip(self.parameters, self.masters, states_of(self.optimizer), strict=True)
        return [
            OwnedFragment(parameter, 0, master.numel(), master, {**values, MASTER: master})
            for parameter, master, values in pairs
        ]

    @torch.no_grad()
    def load_fragments(self, states: Sequence[dict[str, Any]]) -> None:
        """Take the states of `fragments`; a master that they lack is made of the parameter."""
        for master, parameter, values in zip(self.masters, self.parameters, states, strict=True):
            master.copy_(values.pop(MASTER, parameter))
        load_states(self.optimizer, states)

    @torch.no_grad()
    def _round(self) -> None:
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            parameter.copy_(master)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no number is inf or nan. A GPU is waited for once, not for every tensor.

    TypeError for anything but tensors, such as a missing gradient.
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

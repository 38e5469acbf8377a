"""Float32 masters of 16-bit parameters: what keeps updates that are too small for 16 bits.

Wire: nothing.
Papers: Micikevicius et al., "Mixed precision training", arXiv:1710.03740; Kalamkar et al., "A study
of BFLOAT16 for deep learning training", arXiv:1905.12322.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from labkit.optimizer import Optimizer
from labkit.precision.loss_scale import LossScaler


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

        TypeError, ValueError for what is no parameter, is given twice, or has more than 32 bits.
        """
        given = list(parameters) if isinstance(parameters, Iterable) else [parameters]
        for parameter in given:
            if not isinstance(parameter, Tensor):
                raise TypeError(f"{parameter!r:.60} is no parameter: give module.parameters()")
            if parameter.itemsize > 4:
                raise ValueError(
                    f"a parameter is {parameter.dtype}, of which a float32 master would lose digits"
                )
        if len({id(p) for p in given}) < len(given):
            raise ValueError("a parameter is given twice, and would have two masters")
        if not callable(make_optimizer):
            raise TypeError(
                f"make_optimizer={make_optimizer!r:.60}: give what makes an optimizer of the "
                "masters, such as lambda masters: AdamW(masters, 1e-3)"
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
        them. Whether a step was made: a scaler may skip it. RuntimeError where no parameter has a
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

    @torch.no_grad()
    def _round(self) -> None:
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            parameter.copy_(master)

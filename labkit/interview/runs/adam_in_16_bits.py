"""16-bit training with Adam, metered: what one process holds for each parameter.

    bf16       all in bfloat16, as AdamW does it when nobody says more      2 + 2 + 2 + 2         8
    moments    Adam's two moments in float32                                2 + 2 + 4 + 4        12
    masters    a float32 master copy as well, which is what Adam updates    2 + 2 + 4 + 4 + 4    16

Wire: nothing. Metered where a backward pass has ended, after a step that made the states.
"""

from typing import Any

import torch
from torch import Tensor, nn

from labkit import Group
from labkit.interview.runs.real_run import real_run, run
from labkit.memory import Meter
from labkit.optimizer import AdamState, AdamW, state_tensors
from labkit.precision import MasterWeights

RECIPES = ("bf16", "moments", "masters")
WIDTH = 256
KINDS = ("parameters", "gradients", "optimizer states")


@real_run
def bytes_per_parameter(recipe: str) -> float:
    """Metered bytes of parameters, gradients and optimizer states, over the number of parameters.

    recipe: "bf16", "moments" or "masters", see above.
    """
    if recipe not in RECIPES:
        raise ValueError(f"recipe={recipe!r}: give one of {', '.join(RECIPES)}")
    return run(_held, 1, args=(recipe,)).values[0] / WIDTH**2


class _Moments32(AdamW):
    """Moments in float32 beside parameters in 16 bits, which round each update."""

    def _update(self, parameter: Tensor, grad: Tensor, state: AdamState) -> None:
        state.mean, state.mean_square = state.mean.float(), state.mean_square.float()
        super()._update(parameter, grad.float(), state)


def _made(recipe: str, model: nn.Module) -> tuple[Any, Any]:
    """What steps, and what has the states."""
    if recipe == "masters":
        masters = MasterWeights(model.parameters(), lambda each: AdamW(each, 1e-3))
        return masters, masters.optimizer
    optimizer = (AdamW if recipe == "bf16" else _Moments32)(model.parameters(), 1e-3)
    return optimizer, optimizer


def _held(world: Group, recipe: str) -> int:
    model = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
    stepping, keeping = _made(recipe, model)
    x = torch.ones(1, WIDTH, dtype=torch.bfloat16)
    model(x).sum().backward()
    stepping.step()
    stepping.zero_grad()
    meter = Meter(model, keeping)
    if recipe == "masters":
        meter.mark(stepping.masters, "optimizer states")
    with meter:
        model(x).sum().backward()
    assert state_tensors(keeping)
    return sum(meter.usage.at_end[kind] for kind in KINDS)

"""The norm of a gradient that is sharded over ranks, and clipping by it.

    sharded    each rank has its own numbers, and squares are summed
    copied     c ranks hold the same numbers, and a sum over ranks would count them c times

So each rank divides the squares of a gradient by its number of holders, c, and one all-reduce
counts every number once:

                         rank 0     rank 1     divided by    norm^2
    sharded over both    3          4          1             9 + 16
    on both ranks        2          2          2             4/2 + 4/2

The norm is computed after the reduction, because before it each rank has the gradients of another
batch. All ranks get the same bits from the all-reduce, so copies are scaled alike and stay copies.
The usual mistakes raise no error: a rank's own norm scales shards of one matrix by different
factors; copies that count c times make the norm too large, by a factor that changes with the
layout, and training slower than its learning rate says.

Wire: one number in an all-reduce.
"""

import copy
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group

NORM = "norm of the gradients"
"""The label of its all-reduce."""


class GradientShard(Tensor):
    """This rank's part of a gradient: a tensor that torch's own clipping and scaling refuse.

    `torch.nn.utils.clip_grad_norm_` would use the norm of the part alone, and GradScaler
    would skip a step only on the rank that has an inf. Both raise RuntimeError instead. Everything
    else computes as with a plain tensor, and returns plain ones. (torch's FSDP2 makes its gradients
    DTensors, and answers both questions over all ranks.)
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse functions that need the whole gradient; leave everything else alone."""
        name = getattr(func, "__name__", "")
        if name == _LOOKS_FOR_INF:
            raise RuntimeError(_NO_SCALER)
        if name in _NORMS and sys._getframe(1).f_globals.get("__name__") == _CLIPPING:
            raise RuntimeError(_NO_CLIPPING)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # saved and sent as a plain tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(self.as_subclass(Tensor), memo)


def mark_gradient_shard(parameter: Tensor) -> None:
    """Make the gradient of this parameter a GradientShard: other ranks have other parts."""
    if type(parameter.grad) is Tensor:
        parameter.grad = parameter.grad.as_subclass(GradientShard)


_LOOKS_FOR_INF = "_amp_foreach_non_finite_check_and_unscale_"
_NORMS = ("_foreach_norm", "linalg_vector_norm", "vector_norm")
_CLIPPING = "torch.nn.utils.clip_grad"
_NO_SCALER = (
    "torch.amp.GradScaler looks for inf on each rank alone, and this rank holds only a part of the "
    "gradient. One rank would skip a step that other ranks make. Use "
    "labkit.precision.LossScaler(group=...), which decides for all ranks together"
)
_NO_CLIPPING = (
    "torch's clip_grad_norm_ computes the norm of this rank's gradients alone, a shard or not "
    "averaged yet, so each rank would scale by a different factor. Call clip_gradients(max_norm) "
    "of the sharded module or of the sharded optimizer on every rank, or else "
    "labkit.global_norm.clip"
)


def check_max_norm(max_norm: object) -> float:
    """Raise TypeError or ValueError for a norm that no gradient can be clipped to."""
    return arguments.number("max_norm", max_norm, "a norm above 0, such as 1.0", above=0)


@torch.no_grad()
def global_norm(gradients: Iterable[tuple[Tensor, int]], group: Group) -> Tensor:
    """Return the norm of all ranks' gradients together, each number counted once: (), in float64.

    gradients: this rank's, each with the number of ranks of `group` that hold the same.
    """
    square = torch.zeros((), dtype=torch.float64, device=group.device)
    for gradient, num_holders in gradients:
        numbers = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        # Summed in float64 without a copy in it, which would take twice the gradients' memory.
        size = torch.linalg.vector_norm(numbers, dtype=torch.float64)
        square += size.square().to(square.device) / num_holders
    with group.label(NORM):
        total: Tensor = group.all_reduce(square)
    return total.sqrt()


@torch.no_grad()
def clip(gradients: Collection[tuple[Tensor, int]], max_norm: float, group: Group) -> Tensor:
    """Scale gradients so that their norm over all ranks of `group` is at most `max_norm`.

    Every rank calls it, with gradients as for `global_norm`. Returns the norm before, (), in
    float64, with the same bits on every rank. TypeError or ValueError for a norm that is not above
    0.
    """
    max_norm = check_max_norm(max_norm)
    norm = global_norm(gradients, group)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)
    for gradient, _ in gradients:
        gradient.mul_(scale.to(gradient.device))
    return norm

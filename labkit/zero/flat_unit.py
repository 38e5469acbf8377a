"""The parameters of a unit in one flat tensor: a shard of it, and all of it while it is in use.

    released    shard (k,)                                   an n-th, in the parameters' dtype
    gathered    full  (n*k,) in the dtype of computing       parameters are views of it
    backward    gradients (n*k,) --reduce-scatter--> shard.grad (k,), added to

What autograd has saved for backward may be a view of `full`, a transposed weight for example. So
`full` is one tensor for ever, and releasing it takes the memory away from under it: gathered again,
the saved view has its numbers back. That is no change in autograd's eyes: it counts versions by
tensor, and `full` is none that it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from labkit.collectives.wire import Wire, own_part
from labkit.comm import Group
from labkit.data_parallel.bucketed import require_plain_numbers
from labkit.data_parallel.wrapping import mark_sharded
from labkit.memory import announce
from labkit.zero.flat import Flat, by_elements, flattened, is_divided_before


class FlatUnit:
    """The parameters of a unit that have one dtype, and are all trained or all frozen."""

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        group: Group,
        compute_dtype: torch.dtype | None,
        *,
        poison: bool,
    ) -> None:
        """Keeps this rank's segment of them, and releases the rest.

        poison: released memory stays, full of nan, so that use after release shows.
        """
        self.names, self.parameters = tuple(named), tuple(named.values())
        self._group, self._poison = group, poison
        first = self.parameters[0]
        layout = by_elements([p.numel() for p in self.parameters], group.size)
        self.flat: Flat = flattened(self.parameters, layout, group.size)
        weights = self.flat.weights
        self.shard = nn.Parameter(own_part(weights, group).clone(), first.requires_grad)
        is_cast = compute_dtype is not None and weights.is_floating_point()
        self._full = weights.to(compute_dtype) if is_cast else weights
        self._views = self.flat.views(self._full)
        self._nothing = self._full.new_empty(0)
        self.gradients: Tensor | None = None
        """(n*k,): those that have arrived in this backward pass."""
        self._gradient_views: tuple[Tensor, ...] = ()
        mark_sharded([self.shard, *self.parameters])
        self.show()
        if self._full is not weights:
            weights.untyped_storage().resize_(0)
        self.release()

    @property
    def numel(self) -> int:
        """Of all segments, padding included."""
        return self.flat.layout.numel

    def gather(self, group: Group, wire: Wire) -> None:
        """Fill `full` from every rank's shard."""
        self._full.untyped_storage().resize_(self._full.numel() * self._full.element_size())
        own = own_part(self._full, group).copy_(self.shard.detach())
        wire.all_gather(own, group, out=self._full).wait()

    def show(self) -> None:
        """The parameters are there."""
        announce(self._full, "buffers")
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.data = view

    def release(self) -> None:
        """Free `full`. What uses a parameter now gets an empty one, or nan."""
        if self._poison and self._full.is_floating_point():
            self._full.fill_(torch.nan)
            return
        for parameter in self.parameters:
            parameter.data = self._nothing
        self._full.untyped_storage().resize_(0)

    def take(self, index: int, parameter: Tensor) -> None:
        """Move a gradient in, and free it."""
        require_plain_numbers(parameter.grad, self.names[index])
        if self.gradients is None:
            self.gradients = torch.zeros(
                self.numel, dtype=self._full.dtype, device=self._full.device
            )
            self._gradient_views = self.flat.views(self.gradients)
            announce(self.gradients, "buffers")
        if parameter.grad is not None:
            self._gradient_views[index].copy_(parameter.grad)
        parameter.grad = None

    def handed_over(self) -> Tensor | None:
        """The gradients that have arrived, which are no longer ours; None: none has."""
        gradients, self.gradients, self._gradient_views = self.gradients, None, ()
        return gradients

    def require_same_trained(self) -> None:
        """RuntimeError that names what was frozen or unfrozen since it was sharded."""
        is_trained = self.shard.requires_grad
        changed = [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if parameter.requires_grad != is_trained
        ]
        if changed:
            raise RuntimeError(
                f"{', '.join(changed)}: frozen or unfrozen after the module was sharded, in the "
                "shard or in the module alone; do so first, and shard it after"
            )

    def keep(self, segment: Tensor, num_ranks: int) -> None:
        """Add this rank's segment of the sum, as a mean, to the shard's gradient, in its dtype."""
        mean = segment.to(self.shard.dtype)
        if not is_divided_before(segment.dtype):
            mean = mean / num_ranks
        if self.shard.grad is None:
            self.shard.grad = mean
        else:
            self.shard.grad += mean

    def whole(self, group: Group, wire: Wire) -> dict[str, Tensor]:
        """All parameters by name, in the dtype of the shards; copies."""
        flat = self.shard.detach().new_empty(self.numel)
        own = own_part(flat, group).copy_(self.shard.detach())
        wire.all_gather(own, group, out=flat).wait()
        return {n: v.clone() for n, v in zip(self.names, self.flat.views(flat), strict=True)}

    def require_shapes(self, whole: Mapping[str, Tensor]) -> None:
        """ValueError for a parameter that has another shape in `whole`."""
        for name, form in zip(self.names, self.flat.forms, strict=True):
            if whole[name].shape != form.shape:
                raise ValueError(
                    f"{name} has shape {tuple(whole[name].shape)} here, and {tuple(form.shape)} in "
                    "the module: these parameters are of another model"
                )

    @torch.no_grad()
    def load(self, whole: Mapping[str, Tensor]) -> None:
        """Take this rank's segment of `whole`, which has these shapes."""
        flat = self.shard.detach().new_zeros(self.numel)
        for name, view in zip(self.names, self.flat.views(flat), strict=True):
            view.copy_(whole[name])
        self.shard.copy_(own_part(flat, self._group))

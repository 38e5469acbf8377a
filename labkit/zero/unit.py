"""A unit of ZeRO-3: the parameters of one module, gathered, used and released together.

    released    shard (k,)                                   1/n of them, in the parameters' dtype
    gathered    full  (n*k,) in compute_dtype                the module's parameters are views of it
    backward    gradients (n*k,) --reduce-scatter--> (k,)    means, added to the shard's gradient

A `Unit` has one `FlatParameter` for each dtype, device, and trained or frozen parameters. The
optimizer gets a view of the shard for each parameter, by its own name. For parameters a, b and c:

    full             a a a a a b b | b b c c c c .        2 ranks; "." pads to a multiple of 2
    shards, rank 0   a (5,), b (2,), c (0,)
            rank 1   a (0,), b (2,), c (4,)

Autograd may save a view of `full` for backward, for example a transposed weight. So `full` stays
the same tensor: a release frees its storage (`resize_(0)`), and the next gather fills it again, for
saved views too. Autograd notices no change: it counts versions by tensor, and it has never seen
`full` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit.collectives.backend import CollectiveBackend, own_part
from labkit.comm import Group
from labkit.data_parallel.background import BackgroundHandle, CommunicationThread
from labkit.data_parallel.replica import mark_sharded, require_plain_numbers
from labkit.global_norm import GradientShard
from labkit.memory import tag_tensors
from labkit.optimizer import mark_replaced
from labkit.shards import Extent, NamedShard, require_rows
from labkit.zero.flat import by_elements, flattened, is_divided_before

NONE = -0.0
"""The number that stands for a missing gradient.

A sum is -0.0 only if every term is -0.0. So the reduced gradients themselves show which parameters
no rank has used, without another message. In real gradients 0.0 replaces -0.0.
"""


class ShardingOptions(NamedTuple):
    """The sharding of a module: the same for all of its units."""

    group: Group
    thread: CommunicationThread
    backend: CollectiveBackend
    num_ranks: int
    """The number of ranks that gradients are averaged over: with replicas more than group.size."""
    compute_dtype: torch.dtype | None
    poison: bool
    """True if a release fills memory with nan instead of freeing it, to show use after release."""


class Unit:
    """The parameters of one module, gathered before it computes and released after."""

    def __init__(
        self, name: str, parameters: Mapping[str, nn.Parameter], options: ShardingOptions
    ) -> None:
        self.name, self._options = name, options
        self.flats = [FlatParameter(each, options) for each in _by_kind(parameters)]
        self.is_gathered = False
        self.in_backward = False
        """True from the first gradient of its outputs to the last gradient of its inputs."""
        self.num_passes = 0
        """The number of calls in forward whose backward has not ended."""
        self.is_reached = False
        """True if backward has reached this unit, and its gradients are not reduced yet."""
        self._gathering: BackgroundHandle[None] | None = None
        self._reducing: list[Callable[[], None]] = []

    @property
    def is_trainable(self) -> bool:
        """Return whether any of its parameters is trained."""
        return any(p.requires_grad for flat in self.flats for p in flat.parameters)

    @property
    def has_gradients(self) -> bool:
        """Return whether gradients have arrived that are not reduced yet."""
        return any(flat.gradients is not None for flat in self.flats)

    def start_gather(self) -> None:
        """Start to gather, unless the parameters are gathered or being gathered."""
        if self.is_gathered or self._gathering is not None or not self.flats:
            return

        def gather(group: Group) -> None:
            for flat in self.flats:
                with group.label(f"weights of {self.name}"):
                    flat.gather(group)

        self._gathering = self._options.thread.start(gather)

    def gather(self) -> None:
        """Gather the parameters, and return when they are there."""
        self.start_gather()
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
            for flat in self.flats:
                flat.use_unsharded_views()
            self.is_gathered = True

    def release(self) -> None:
        """Free the gathered parameters, even if they were not used."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
        elif not self.is_gathered:
            return
        self.is_gathered = False
        for flat in self.flats:
            flat.release()

    def start_reduce(self) -> None:
        """Start to reduce the gradients, with NONE for those that have not arrived.

        This is also done if none has arrived: other ranks may have gradients.
        """
        self.is_reached = False
        for flat in self.flats:
            if flat.is_trainable:
                gradients, arrived = flat.take_gradients()
                reduce = partial(_reduce, gradients, self.name, self._options.backend)
                handle = self._options.thread.start(reduce)
                self._reducing.append(partial(flat.add_gradient, handle, arrived))

    def finish_reduce(self) -> None:
        """Wait for the reductions, and add the reduced gradients to those of the shards."""
        while self._reducing:
            self._reducing.pop(0)()

    def drop(self) -> None:
        """Release the unit, and drop the gradients of a failed pass."""
        self.release()
        self.in_backward = self.is_reached = False
        self._reducing = []
        for flat in self.flats:
            flat.drop_gradients()


def _reduce(gradients: Tensor, name: str, backend: CollectiveBackend, group: Group) -> Tensor:
    # A copy of this rank's shard, so that the whole gradients are freed before the next gather.
    with group.label(f"gradients of {name}"):
        own: Tensor = backend.reduce_scatter(gradients, group, in_place=True).wait()
        return own.clone()


class FlatParameter:
    """Parameters in one flat tensor: this rank's shard of it, and all of it while it is used."""

    def __init__(self, named: Mapping[str, nn.Parameter], options: ShardingOptions) -> None:
        """Keep this rank's shard of the parameters, and release them."""
        self.names, self.parameters, self._options = tuple(named), tuple(named.values()), options
        layout = by_elements([p.numel() for p in self.parameters], options.group.size)
        self._flat = flattened(self.parameters, layout, options.group.size)
        weights = self._flat.weights
        self.shard = own_part(weights, options.group).clone()
        """(k,)"""
        places = {f.number: f.place for f in self._flat.fragments(options.group.rank)}
        self._places = [places.get(number, slice(0)) for number in range(len(named))]
        is_trainable = self.parameters[0].requires_grad
        self.shards = [nn.Parameter(self.shard[place], is_trainable) for place in self._places]
        """This rank's part of each parameter, a view of `shard`; it may be empty."""
        self.has_hooks = is_trainable
        """True if the parameters have hooks that collect their gradients (zero3.py)."""
        self._trainable = [is_trainable] * len(self.parameters)
        mark_sharded([*self.shards, *self.parameters])
        mark_replaced(self.parameters)
        is_cast = options.compute_dtype is not None and weights.is_floating_point()
        self.full = weights.to(options.compute_dtype) if is_cast else weights
        """(n*k,)"""
        self._views = self._flat.views(self.full)
        self._empty = self.full.new_empty(0)
        self.gradients: Tensor | None = None
        """(n*k,): the gradients of this backward pass, and NONE for those that have not arrived."""
        self._arrived: set[int] = set()
        self._gradient_views: tuple[Tensor, ...] = ()
        self.use_unsharded_views()
        if self.full is not weights:
            weights.untyped_storage().resize_(0)
        self.release()

    def gather(self, group: Group) -> None:
        """Fill `full` from every rank's shard."""
        self.full.untyped_storage().resize_(self.full.numel() * self.full.element_size())
        own = own_part(self.full, group).copy_(self.shard)
        self._options.backend.all_gather(own, group, out=self.full).wait()

    def use_unsharded_views(self) -> None:
        """Make the module's parameters views of `full`."""
        tag_tensors(self.full, "buffers")
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.data = view

    def release(self) -> None:
        """Free `full`. After that a parameter is empty, or with `poison` full of nan."""
        if self._options.poison and self.full.is_floating_point():
            self.full.fill_(torch.nan)
            return
        for parameter in self.parameters:
            parameter.data = self._empty
        self.full.untyped_storage().resize_(0)

    def collect_gradient(self, index: int, parameter: Tensor) -> None:
        """Move the gradient of a parameter into `gradients`."""
        gradient, parameter.grad = parameter.grad, None
        require_plain_numbers(gradient, self.names[index])
        if gradient is None:
            return
        if self.gradients is None:
            self._allocate_gradients()
        if is_divided_before(gradient.dtype):
            gradient = gradient / self._options.num_ranks
        torch.add(gradient, 0.0, out=self._gradient_views[index])  # -0.0 + 0.0 is 0.0
        self._arrived.add(index)

    @property
    def is_trainable(self) -> bool:
        """Return whether any of the parameters is trained at present."""
        return any(self._trainable)

    def take_gradients(self) -> tuple[Tensor, set[int]]:
        """Return the gradients and the numbers of the parameters that have one, and drop both."""
        if self.gradients is None:
            self._allocate_gradients()
        assert self.gradients is not None
        taken = self.gradients, self._arrived
        self.drop_gradients()
        return taken

    def drop_gradients(self) -> None:
        """Drop the gradients that have arrived."""
        self.gradients, self._gradient_views, self._arrived = None, (), set()

    def _allocate_gradients(self) -> None:
        none = complex(NONE, NONE) if self.full.is_complex() else NONE
        self.gradients = torch.full_like(self.full, none)
        self._gradient_views = self._flat.views(self.gradients)
        tag_tensors(self.gradients, "buffers")

    def add_gradient(self, reduced: BackgroundHandle[Tensor], arrived: Set[int]) -> None:
        """Divide the reduced sum (k,) by the number of ranks, and add it to the shards' gradients.

        arrived: the parameters that this rank has used. A parameter that no rank has used gets no
        gradient. A shard without a gradient gets a view of the mean, in the dtype of the shards.
        """
        total = reduced.wait()
        mean = total.to(self.shard.dtype)
        if not is_divided_before(total.dtype):
            mean = mean / self._options.num_ranks
        for index, (shard, place) in enumerate(zip(self.shards, self._places, strict=True)):
            if not shard.numel() or not shard.requires_grad:
                continue
            if index not in arrived and _is_missing(total[place]):
                continue
            if shard.grad is None:
                shard.grad = mean[place].as_subclass(GradientShard)
            else:
                shard.grad += mean[place]

    def sync_requires_grad(self) -> None:
        """Freeze or unfreeze the module's parameters as their shards were since the last pass.

        RuntimeError, with names: a parameter was frozen or unfrozen in the module itself, or it was
        frozen when the module was sharded and is unfrozen now.
        """
        now = [shard.requires_grad for shard in self.shards]
        changed = [
            name
            for name, parameter, before, is_trainable in zip(
                self.names, self.parameters, self._trainable, now, strict=True
            )
            if parameter.requires_grad != before or (is_trainable and not self.has_hooks)
        ]
        if changed:
            raise RuntimeError(
                f"{', '.join(changed)}: frozen or unfrozen after the module was sharded. Freeze by "
                "name among named_parameters() of the sharded module, and unfreeze only what was "
                "trained when it was sharded"
            )
        self._trainable = now
        for parameter, is_trainable in zip(self.parameters, now, strict=True):
            parameter.requires_grad_(is_trainable)

    def named_shards(self) -> Iterator[NamedShard]:
        """Yield this rank's part of each parameter. ValueError for one that is not contiguous."""
        starts = {f.number: f.within.start for f in self._flat.fragments(self._options.group.rank)}
        for number, (name, shard, form) in enumerate(
            zip(self.names, self.shards, self._flat.forms, strict=True)
        ):
            require_rows(name, form)
            start = starts.get(number, 0)
            whole = Extent.whole(tuple(form.shape))
            yield NamedShard(name, whole.within(start, start + shard.numel()), shard)

    def full_parameters(self) -> dict[str, Tensor]:
        """Return all parameters by name, in the dtype of the shards; copies."""
        group = self._options.group
        flat = torch.empty_like(self.full, dtype=self.shard.dtype)
        own = own_part(flat, group).copy_(self.shard)
        self._options.backend.all_gather(own, group, out=flat).wait()
        return {n: v.clone() for n, v in zip(self.names, self._flat.views(flat), strict=True)}

    def require_shapes(self, whole: Mapping[str, Tensor]) -> None:
        """Raise ValueError for a parameter that has another shape in `whole`."""
        for name, form in zip(self.names, self._flat.forms, strict=True):
            if whole[name].shape != form.shape:
                raise ValueError(
                    f"{name} has shape {tuple(whole[name].shape)} here, and {tuple(form.shape)} in "
                    "the module: these parameters are of another model"
                )

    def load_full_parameters(self, whole: Mapping[str, Tensor]) -> None:
        """Copy this rank's shard from whole parameters, by name."""
        flat = torch.zeros_like(self.full, dtype=self.shard.dtype)
        for name, view in zip(self.names, self._flat.views(flat), strict=True):
            view.copy_(whole[name].detach())
        self.shard.copy_(own_part(flat, self._options.group))


def _is_missing(total: Tensor) -> bool:
    """Return whether no rank has a gradient here: all numbers are NONE, -0.0."""
    numbers = torch.view_as_real(total) if total.is_complex() else total
    return bool((torch.signbit(numbers) & (numbers == 0)).all())


def _by_kind(parameters: Mapping[str, nn.Parameter]) -> list[dict[str, nn.Parameter]]:
    kinds: dict[tuple[object, ...], dict[str, nn.Parameter]] = {}
    for name, parameter in parameters.items():
        kind = (parameter.dtype, parameter.device, parameter.requires_grad)
        kinds.setdefault(kind, {})[name] = parameter
    return list(kinds.values())

"""ZeRO-1: every rank keeps the optimizer states of its shard of the parameters only.

It adds to plain_zero1.py: any torch optimizer with its groups and state dicts, float32 master
weights, states on the CPU or on disk, clipping, and gradients that are missing on some ranks. In
mixed precision with Adam the states are three quarters of the memory, 12 of 16 bytes. They shrink
to 1/n, with no more traffic than plain data parallelism.

Layout: parameters and gradients are views of flat tensors, one for each parameter group, dtype and
device, cut into n shards. A rank has states, and master weights if asked for, of its shards.
Wire: 2(n-1)/n of the parameters' bytes per step, however many backward passes it has. Construction
broadcasts the parameters from rank 0.
Paper: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
arXiv:1910.02054, section 5.1.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives.backend import CollectiveBackend, chosen_backend, own_part, require_backend
from labkit.comm import Group
from labkit.data_parallel.ddp import has_gradient_on_any_rank
from labkit.data_parallel.replica import on_gradient, remove_with, require_plain_numbers
from labkit.global_norm import GradientShard, check_max_norm, clip
from labkit.zero.flat import is_divided_before, require_floating
from labkit.zero.states import Masters, Shard, ShardedStates


class Zero1Optimizer(ShardedStates):
    """Any optimizer of torch or of the lab, with its states sharded over the ranks.

        optimizer = Zero1Optimizer(model.parameters(), torch.optim.AdamW, world, lr=3e-4)
        loss(model, share).backward()
        optimizer.step()

    It is a torch.optim.Optimizer, so schedulers accept it. Do not wrap the model in DDP: `step()`
    averages the gradients. A model that is wrapped already raises TypeError; wrapping it afterwards
    doubles the traffic. Load the model's parameters first: master weights are copied from them.

    A step uses the gradients up: `.grad` is None after it, and after `reduce_gradients` it holds
    partial sums. Gradients of several backward passes are summed in the dtype of the parameters,
    even if master weights have another dtype: in bfloat16 256 + 1 is 256. (zero3 sums in the dtype
    of its shards.)
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Any],
        group: Group | None = None,
        *,
        backend: CollectiveBackend | None = None,
        master_dtype: torch.dtype | None = None,
        masters_on: torch.device | str | None = None,
        find_unused_parameters: bool = False,
        **defaults: Any,
    ) -> None:
        """params: parameters, (name, parameter) pairs, or dicts with settings, as in torch.optim.

        group: None for torch.distributed's default group. backend: the collectives; None: a ring on
        the CPU, torch's elsewhere. master_dtype: torch.float32 for parameters of 16 bits, which are
        then rounded copies of float32 master weights. masters_on: "cpu" keeps master weights and
        states on the CPU and steps there: see states_on_disk.py. find_unused_parameters: True if a
        step may leave parameters without gradient; this costs one small all-reduce. defaults: the
        optimizer's settings.

        TypeError for anything that cannot be sharded. ValueError on a rank whose parameters differ
        from rank 0's in more than values.
        """
        require_backend(backend)
        require_floating("master_dtype", master_dtype)
        masters = Masters(master_dtype, None if masters_on is None else torch.device(masters_on))
        super().__init__(params, optimizer_class, group, masters, defaults)
        self.backend = chosen_backend(backend, self.group)
        self.find_unused_parameters = find_unused_parameters
        self._reduced: list[Tensor] | None = None
        self._receive_gradients()

    def reduce_gradients(self) -> list[Tensor]:
        """Return the averaged gradients of this rank's fragments. `step` uses them.

        To clip gradients or to look for inf, call it on every rank before `step`; otherwise `step`
        calls it. RuntimeError, before anything is sent, for a parameter without a gradient, unless
        find_unused_parameters is True.
        """
        if self._reduced is None:
            self.require_same_trainable()
            sums, unused = self._sums(), self._unused()
            self._reduced = []
            for shard, total, left_out in zip(self.shards, sums, unused, strict=True):
                if not is_divided_before(total.dtype):
                    total.div_(self.group.size)
                self._reduced += shard.set_gradients(total, left_out)
        return self._reduced

    def named_gradients(self) -> list[tuple[str, Tensor]]:
        """Return the gradients of `reduce_gradients`, each with the name of its parameter.

        A parameter that lies in several shards has a fragment on several ranks.
        """
        self.reduce_gradients()
        return [
            (shard.names[fragment.number], target.grad)
            for shard in self.shards
            for fragment, target in zip(shard.fragments, shard.targets, strict=True)
            if target.grad is not None
        ]

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale all gradients down to a norm of at most `max_norm` over all parameters.

        Returns the norm before clipping, (), the same on every rank. torch's clip_grad_norm_ raises
        an error, because before `reduce_gradients` the gradients are not averaged. Wire: one number
        in an all-reduce. TypeError, ValueError for a max_norm that is not a number above 0; errors
        of `reduce_gradients`.
        """
        max_norm = check_max_norm(max_norm)
        return clip([(each, 1) for each in self.reduce_gradients()], max_norm, self.group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average gradients, update this rank's shards, gather all shards. Returns closure's loss.

        Gradients are means over the ranks. If the ranks' shares of the batch differ in size, scale
        each loss by `len(share) / len(batch) * group.size`. For padded sequences count the targets
        that are not ignored instead of the rows. Errors as in `reduce_gradients`, and RuntimeError
        for a parameter that was moved or converted since the optimizer was made.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for shard in self.shards:
            shard.flat.require_in_place()
        self.reduce_gradients()
        self._inner.step(self.settings)
        for shard in self.shards:
            shard.round_masters()
            with self.group.label(f"weights of {shard.label}"):
                weights = shard.flat.weights
                own = own_part(weights, self.group)
                self.backend.all_gather(own, self.group, out=weights).wait()
        self.zero_grad()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, including the averaged ones."""
        self._forget_gradients()
        for shard in self.shards:
            shard.set_gradients(None, ())
        self._reduced = None

    def _receive_gradients(self) -> None:
        self._gradients = [FlatGradients(shard, self._before_arrival) for shard in self.shards]

    def _sums(self) -> list[Tensor]:
        """Return for each shard this rank's part (k,) of the gradients' sum over the ranks."""
        missing = [gradients.missing() for gradients in self._gradients]
        if not self.find_unused_parameters:
            self._require_none_missing(self.shards, missing)
        sums = []
        for gradients, absent in zip(self._gradients, missing, strict=True):
            gradients.settle()
            gradients.fill(absent)
            if is_divided_before(gradients.flat.dtype):
                gradients.flat.div_(self.group.size)
            with self.group.label(f"gradients of {gradients.shard.label}"):
                handle = self.backend.reduce_scatter(gradients.flat, self.group, in_place=True)
                sums.append(handle.wait())
        return sums

    def _unused(self) -> list[set[int]]:
        """Return the numbers of parameters that no rank has used, by shard."""
        missing = [gradients.missing() for gradients in self._gradients]
        return self._missing_everywhere(missing) if self.find_unused_parameters else missing

    def _forget_gradients(self) -> None:
        for gradients in self._gradients:
            gradients.forget()

    def _before_arrival(self) -> None:
        if self._reduced is not None:
            raise RuntimeError(
                "a backward pass between reduce_gradients() and the step that uses the averaged "
                "gradients: call step() or zero_grad() first"
            )

    def _require_none_missing(self, shards: Sequence[Shard], missing: Sequence[set[int]]) -> None:
        """Raise RuntimeError with the names of parameters without a gradient on this rank."""
        names = [
            shard.names[index]
            for shard, indices in zip(shards, missing, strict=True)
            for index in sorted(indices)
        ]
        if names:
            raise RuntimeError(
                f"rank {self.group.rank}: no gradient for {', '.join(names)}: no backward pass has "
                "reached them. Use them, or pass find_unused_parameters=True; or freeze them with "
                "requires_grad_(False) on every rank before the optimizer is made"
            )

    def _missing_everywhere(self, missing: Sequence[set[int]]) -> list[set[int]]:
        """Return the numbers of parameters without a gradient on any rank, by shard.

        missing: those without one on this rank. Wire: one byte per parameter in an all-reduce.
        """
        sizes = [len(shard.names) for shard in self.shards]
        has = [i not in each for each, n in zip(missing, sizes, strict=True) for i in range(n)]
        anywhere = iter(has_gradient_on_any_rank(has, self.group))
        return [{i for i in range(n) if not next(anywhere)} for n in sizes]


class FlatGradients:
    """The gradients of one flat tensor's parameters in another flat tensor (n*k,).

    When a gradient is complete, a hook copies it there, and `.grad` becomes a view of it. A second
    backward pass adds to the view in place, so gradients of several microbatches are summed.
    """

    def __init__(self, shard: Shard, before: Callable[[], None]) -> None:
        """before: called before each gradient is copied; it may raise an error."""
        self.shard = shard
        self.flat = torch.zeros_like(shard.flat.weights)
        kind = GradientShard if shard.group.size > 1 else Tensor
        self._views = [view.as_subclass(kind) for view in shard.flat.views(self.flat)]
        self._before = weakref.WeakMethod(before)
        take = self._take
        parameters = shard.flat.parameters
        remove_with(self, [on_gradient(p, take, index) for index, p in enumerate(parameters)])

    def _take(self, index: int, parameter: Tensor) -> None:
        if (before := self._before()) is not None:
            before()
        self._move(index, parameter)

    def _move(self, index: int, parameter: Tensor) -> None:
        gradient, view = parameter.grad, self._views[index]
        require_plain_numbers(gradient, self.shard.names[index])
        if gradient is not None and gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            parameter.grad = view

    def missing(self) -> set[int]:
        """Return the numbers of the parameters without a gradient."""
        return {n for n, p in enumerate(self.shard.flat.parameters) if p.grad is None}

    def settle(self) -> None:
        """Copy gradients that the program has assigned to `.grad` itself."""
        for index, parameter in enumerate(self.shard.flat.parameters):
            self._move(index, parameter)

    def fill(self, missing: set[int]) -> None:
        """Write zeros for missing gradients: other ranks' gradients are added to them."""
        for index in missing:
            self._views[index].zero_()

    def forget(self) -> None:
        """Set `.grad` of all parameters to None. The flat tensor stays."""
        for parameter in self.shard.flat.parameters:
            parameter.grad = None

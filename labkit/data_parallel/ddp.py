"""DDP: OverlappedDDP for real models. The last rung has the features of torch's DDP.

    accumulation   with model.no_sync(): gradients stay on their rank and add up. The first pass
                   outside averages the sum: one all-reduce per bucket for k microbatches.
    left out       find_unused_parameters: a loss may leave out parameters, which may differ by
                   rank. They count as zeros. A parameter that no rank uses has no gradient.
    rebuilt        after the first pass buckets are cut in the order in which gradients arrived.

Buckets are first cut in the order in which modules are made. If modules are used in another order,
the first bucket waits for a late gradient. The other buckets wait for the first, because buckets
start in order. After one pass the order of arrival is known:

    made, and so cut     w0 w1 w2 w3      [w3 w2] [w1 w0]      none starts before the end
    gradients arrive     w0 w3 w1 w2      [w0 w3] [w1 w2]      the first starts after two

Ranks may see different orders but must cut the same buckets, so all take rank 0's order.

Wire: as OverlappedDDP, and once a broadcast of 8 bytes per trained parameter.
Memory: all gradients twice while they move into rebuilt buckets.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, sections 3.2.3, 3.2.4 and 6.2.1.

`train` trains a small GPT on real text: `labkit.train.train_serial` on many ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.data import Batch, Corpus
from labkit.data_parallel.bucketed import BUCKET_BYTES, Bucket, assign_to_buckets, make_buckets
from labkit.data_parallel.naive import NaiveDDP
from labkit.data_parallel.overlapped import OverlappedDDP, bucket_of_parameter
from labkit.data_parallel.reduction import AllReduce, library_all_reduce
from labkit.data_parallel.replica import Replica
from labkit.model import GPT, GPTConfig
from labkit.optimizer import Optimizer
from labkit.train import TrainConfig, Trained, copy_parameters, fit, loss, summed_losses


class DDP(OverlappedDDP):
    """A module whose `backward()` leaves the mean of each gradient over the ranks.

        model = DDP(module, world)
        loss(model, share).backward()
        optimizer.step()

    Gradients are views into buckets, which the next pass overwrites: `.clone()` what is to be kept.
    See OverlappedDDP for gradients that are left in place, and for exceptions.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        all_reduce: AllReduce = library_all_reduce,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
    ) -> None:
        """See `Replica` and `make_buckets` for the other arguments.

        find_unused_parameters: whether a backward pass may leave parameters out. This costs one
        more small all-reduce per pass. The first bucket with a missing gradient, and all buckets
        after it, wait for the end of the pass. Buckets are not rebuilt.
        """
        super().__init__(
            module,
            group,
            all_reduce,
            bucket_bytes=bucket_bytes,
            broadcast_buffers=broadcast_buffers,
        )
        self.find_unused_parameters = self._may_leave_out = find_unused_parameters
        self._bucket_bytes = bucket_bytes
        # A compressor keeps a residual for each bucket.
        self._will_rebuild = not (find_unused_parameters or self._reduction.remembers_buckets)
        self._will_sync = True
        self.is_syncing = True
        """True if the next backward pass reduces gradients."""
        self.has_synced = True
        """True if a backward pass has reduced since the last forward pass that asked for it."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Skip the reduction in backward passes whose forward pass runs in this block.

        Gradients add up on each rank, and the first pass outside averages the sum. As in torch, the
        forward pass decides, not the backward pass.
        """
        before, self._will_sync = self._will_sync, False
        try:
            yield
        finally:
            self._will_sync = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output. Wire: buffers, in training and outside of `no_sync`."""
        if torch.is_grad_enabled():
            # A forward pass in no_sync() must not cancel the reduction of an earlier forward pass
            # whose backward pass is still to come.
            self.is_syncing = self._will_sync or (self.is_syncing and not self.has_synced)
            self.has_synced = self.has_synced and not self._will_sync
        return super().forward(*args, **kwargs)

    def _broadcast_buffers(self) -> None:
        if self._will_sync:
            super()._broadcast_buffers()

    def _on_gradient(self, parameter: Tensor) -> None:
        if self.is_syncing:
            super()._on_gradient(parameter)

    def _finish(self) -> None:
        unused = self._take_left_out() if self.find_unused_parameters else []
        super()._finish()
        for parameter in unused:
            parameter.grad = None  # so that an optimizer skips it, including its weight decay
        if self._will_rebuild:
            self._rebuild()
        self.has_synced = True

    def _take_left_out(self) -> list[Tensor]:
        """Fill in zeros for parameters that were left out; return those that no rank has used."""
        parameters = list(self._place_of)
        has_gradient = [parameter.grad is not None for parameter in parameters]
        arrived = set(self._arrived)
        for bucket, index in self._place_of.values():
            if bucket.names[index] not in arrived:
                self._take(bucket, index)
        self._start_full_buckets()
        # After the buckets: ranks that use every parameter have started those already.
        is_used = has_gradient_on_any_rank(has_gradient, self.group)
        return [p for p, used in zip(parameters, is_used, strict=True) if not used]

    def _rebuild(self) -> None:
        """Rebuild the buckets once, at the end of the first pass on all ranks."""
        self._will_rebuild = False
        order = agreed_order(self._arrived, self.buckets, self.group)
        buckets = rebuild_buckets(order, self.buckets, self._bucket_bytes)
        if buckets is not self.buckets:
            self.buckets = self._reduction.place_buckets(buckets)
            self._reductions = [self._reduction.for_bucket(bucket) for bucket in self.buckets]
            self._place_of = bucket_of_parameter(self.buckets)


def agreed_order(arrived: Sequence[str], buckets: Sequence[Bucket], group: Group) -> list[str]:
    """Return rank 0's order of the parameters' names, on every rank. `arrived`: this rank's."""
    names = sorted(name for bucket in buckets for name in bucket.names)
    number_of = {name: number for number, name in enumerate(names)}
    mine = torch.tensor([number_of[name] for name in arrived], device=group.device)
    with group.label("the order in which gradients arrive"):
        return [names[number] for number in group.broadcast(mine, root=0).tolist()]


def rebuild_buckets(order: Sequence[str], buckets: list[Bucket], bucket_bytes: int) -> list[Bucket]:
    """Return buckets for the same parameters in this order, or the old ones if nothing changes.

    Gradients move: `parameter.grad` is a view into the new buckets.
    """
    parameters = {
        name: parameter
        for bucket in buckets
        for name, parameter in zip(bucket.names, bucket.parameters, strict=True)
    }
    # In the order of the module: its first parameters get their gradients last.
    parameters = {name: parameters[name] for name in reversed(order)}
    if [tuple(each) for each in assign_to_buckets(parameters, bucket_bytes)] == [
        each.names for each in buckets
    ]:
        return buckets
    new = make_buckets(parameters, bucket_bytes)
    for bucket in new:
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            if (gradient := parameter.grad) is not None:
                parameter.grad = view.copy_(gradient).as_subclass(type(gradient))
    return new


def has_gradient_on_any_rank(has_gradient: Sequence[bool], group: Group) -> list[bool]:
    """Return by parameter whether it has a gradient on some rank.

    Wire: one byte per parameter in an all-reduce.
    """
    mask = torch.tensor(has_gradient, dtype=torch.uint8, device=group.device)
    with group.label("which parameters have a gradient"):
        return list(map(bool, group.all_reduce(mask, "max").tolist()))


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    all_reduce: AllReduce = library_all_reduce,
    strategy: Callable[..., Replica] = NaiveDDP,
) -> Trained:
    """Run `labkit.train.train_serial` on the ranks of `world`: run(train, 4, args=(config,
    settings)).

    Every rank returns the losses over the global batch and the parameters; both equal the serial
    ones up to rounding. corpus: None for Python's standard library.
    """
    module = GPT(config, settings.seed, settings.dtype).to(world.device)
    model = strategy(module, world, all_reduce)
    optimizer = settings.make_optimizer(module.parameters())
    parts = fit(partial(train_step, model, optimizer), config, settings, corpus)
    return Trained(summed_losses(parts, world), copy_parameters(module))


def train_step(
    model: Replica, optimizer: Optimizer, batch: Batch, share: Batch | None = None
) -> float:
    """Make a step on this rank's share of a global batch; return its part of the global loss.

    share: this rank's rows of it; None: as many as the other ranks, or one more.
    The parts of all ranks add up to the loss. The timeline names the phases.
    """
    group = model.group
    share = batch.share(group.rank, group.size) if share is None else share
    part = share.num_targets / max(1, batch.num_targets)
    share = share.to(group.device)
    optimizer.zero_grad()
    with group.region("forward"):
        value = loss(model, share)
    with group.region("backward"):
        # The mean weighs all ranks equally. A rank with more targets must weigh more.
        (value * (part * group.size)).backward()
    with group.region("reduce"):
        model.reduce_gradients()
    with group.region("optimizer"):
        optimizer.step()
    return value.item() * part

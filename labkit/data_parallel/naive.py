"""NaiveDDP: every rank has the whole model and its share of the batch. The first rung.

    rank 0   w -> forward, backward on sequences 0 1 -> g0 -+
    rank 1   w -> forward, backward on sequences 2 3 -> g1 -+-> all-reduce: their mean -> the same w
    rank 2   w -> forward, backward on sequences 4 5 -> g2 -+

Layout: parameters, gradients and optimizer state replicated; the batch Shard(0).
Wire: construction broadcasts every parameter and buffer from rank 0. A step sends 2(n-1)/n of the
gradients' bytes per rank, in one all-reduce per parameter. All of them come after backward: many
small messages, and nothing computes meanwhile. The next rungs cure the first (bucketed.py), then
the second (overlapped.py).
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, sections 3.2.1 and 4.1.
"""

from collections import defaultdict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.reduction import AllReduce, library_all_reduce, reduction_of
from labkit.data_parallel.replica import (
    kinds_of,
    require_as_wrapped,
    require_equal_layouts,
    require_plain,
    trainable_parameters,
    unhook,
)

# Every rank wraps its modules in one order, or what they broadcast would not meet.
_NUM_WRAPPED: WeakKeyDictionary[Group, int] = WeakKeyDictionary()


class Replica(nn.Module):
    """One rank's copy of a module, equal to all others from the start. Every strategy is one.

    `module` keeps its names: save `model.module.state_dict()`. Wrapped again, by any strategy, it
    belongs to the newest wrapper. Freeze parameters before you wrap.
    Every rank makes as many training passes as the others, which would wait for it for ever. Where
    one rank has fewer batches, all ranks stop when its batches are used up. (torch has a Join.)
    TypeError for what is no module, or is wrapped already, before anything is sent; ValueError on a
    rank whose module differs from rank 0's in more than its values.
    """

    is_wrapper = True

    def __init__(
        self, module: nn.Module, group: Group | None = None, *, broadcast_buffers: bool = True
    ) -> None:
        """`group`: None for torch.distributed's default one.

        broadcast_buffers: whether a forward pass in training begins with rank 0's buffers. An
        evaluation does not, so it may run on one rank alone, under torch.no_grad() (with torch's
        own, it hangs).
        """
        super().__init__()
        require_plain(module)
        unhook(module)  # or an earlier wrapper would reduce beside this one
        self.module = module
        self.group = chosen(group)
        self.broadcast_buffers = broadcast_buffers
        self._as_wrapped = kinds_of(module)
        _NUM_WRAPPED[self.group] = self.number = _NUM_WRAPPED.get(self.group, 0) + 1
        require_equal_layouts(module, self.group)
        for tensor in (*module.parameters(), *module.buffers()):
            self.group.broadcast(tensor.data, root=0, out=tensor.data)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output."""
        if self.training and self.broadcast_buffers:
            self._broadcast_buffers()
        return self.module(*args, **kwargs)

    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. Call it after backward, on every rank.

        The mean counts every rank alike. Where shares of the batch differ in size, scale the loss
        of each rank by `len(share) / len(batch) * group.size` before its backward pass. Count what
        the loss is a mean over: of padded sequences that is the targets that are not ignored.
        """
        raise NotImplementedError

    @property
    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are not frozen, by name; a tied one once."""
        return trainable_parameters(self.module)

    def label_of(self, what: str) -> str:
        """Return a message's label, which differs between modules that are wrapped side by side."""
        return what if self.number == 1 else f"module {self.number}, {what}"

    def _broadcast_buffers(self) -> None:
        """Take rank 0's, in one message per dtype: training changes running means, for example."""
        by_dtype = defaultdict(list)
        for buffer in self.module.buffers():
            by_dtype[buffer.dtype].append(buffer)
        for buffers in by_dtype.values():
            flat = torch.cat([buffer.flatten() for buffer in buffers])
            self.group.broadcast(flat, root=0, out=flat)
            for buffer, part in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
                # .data: the graph of an earlier forward pass, whose backward is to come, may hold
                # this buffer, and autograd would take the copy for a mistake.
                buffer.data.copy_(part.view_as(buffer))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a wrapper is bound to this process and its group, and cannot be copied or pickled, "
            "since nothing would average the copy's gradients; copy or save its `module`, and wrap "
            "the copy"
        )


class NaiveDDP(Replica):
    """A module whose gradients `reduce_gradients` averages over the ranks, parameter by parameter.

        model = NaiveDDP(module, world)
        loss(model, share).backward()
        model.reduce_gradients()
        optimizer.step()

    A tied parameter is reduced once, a frozen one never.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        all_reduce: AllReduce = library_all_reduce,
        *,
        broadcast_buffers: bool = True,
    ) -> None:
        """See `Replica` for the other arguments. TypeError for what is no all-reduce."""
        reduction = reduction_of(all_reduce)  # refused before anything is sent
        super().__init__(module, group, broadcast_buffers=broadcast_buffers)
        self._reduction = reduction

    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. Call it after backward, on every rank.

        Wire: one all-reduce per trained parameter, of its size.
        Raises RuntimeError when a trained parameter has no gradient, and when one was added or
        unfrozen since the module was wrapped, and TypeError when it has a sparse one, before
        anything is sent. TypeError for a compressor, which needs buckets.
        """
        require_as_wrapped(self.module, self._as_wrapped, may_be_frozen=True, may_be_converted=True)
        for name, gradient in gradients_of(self).items():
            # Before the sum, which in float16 may overflow where the mean fits.
            gradient.div_(self.group.size)
            # As it lies in memory a gradient may be channels_last: here ranks might differ.
            flat = gradient.contiguous()
            with self.group.label(self.label_of(name)):
                self._reduction.start(flat, self.group).wait()
            if flat.data_ptr() != gradient.data_ptr():
                gradient.copy_(flat)


def gradients_of(model: Replica) -> dict[str, Tensor]:
    """The gradients of all trained parameters.

    RuntimeError that names those without one, TypeError that names those with a sparse one.
    """
    gradients = {name: p.grad for name, p in model.trainable_parameters.items()}
    if missing := [name for name, gradient in gradients.items() if gradient is None]:
        raise RuntimeError(
            f"rank {model.group.rank} has no gradient for {', '.join(missing)}: its loss did not "
            "use them, and the other ranks would wait for them; use them on every rank, or freeze "
            "them with requires_grad_(False) on every rank before the module is wrapped"
        )
    found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    if sparse := [name for name, gradient in found.items() if gradient.layout is not torch.strided]:
        raise TypeError(
            f"the gradient of {', '.join(sparse)} is sparse, and an all-reduce adds plain numbers; "
            "pass sparse=False to the embedding"
        )
    return found

"""What all data-parallel strategies begin with: equal modules, and whose averages count.

    rank 0   w, buffers ---broadcast---> w, buffers on every rank

Wire: construction broadcasts every parameter and buffer from rank 0. A forward pass in training
broadcasts the buffers again, in one message per dtype: those that training changes, such as the
running means of a batch norm, differ by rank, and rank 0's are kept.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 4.1.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.hooks import unhook

_SHARDED = "_is_sharded_by_labkit"
# Every rank wraps its modules in one order, or what they broadcast would not meet.
_NUM_WRAPPED: WeakKeyDictionary[Group, int] = WeakKeyDictionary()


class Replica(nn.Module):
    """One rank's copy of a module, equal to all others from the start.

    `module` keeps its names: save `model.module.state_dict()`. Wrapped again, by whatever strategy,
    it belongs to the newest wrapper. What is frozen is decided before.
    Every rank makes as many training passes as the others, who would wait for it for ever: where
    one has fewer batches, all stop when its are used up. (torch has a Join for that.)
    TypeError for what is no module, or is wrapped already, before anything is sent; ValueError on a
    rank whose module differs from rank 0's in more than its values.
    """

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
        self._as_wrapped = _kinds_of(module)
        _NUM_WRAPPED[self.group] = self.number = _NUM_WRAPPED.get(self.group, 0) + 1
        require_equal_layouts(module, self.group)
        for tensor in (*module.parameters(), *module.buffers()):
            self.group.broadcast(tensor.data, root=0, out=tensor.data)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        if self.training and self.broadcast_buffers:
            self._broadcast_buffers()
        return self.module(*args, **kwargs)

    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. Call it after backward, on every rank.

        The mean counts every rank alike. Where shares of the batch differ in size, scale the loss
        of each rank by `len(share) / len(batch) * group.size` before its backward pass.
        """
        raise NotImplementedError

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are not frozen, by name; a tied one once."""
        return trained_of(self.module)

    def require_as_wrapped(
        self, *, may_be_frozen: bool = False, may_be_converted: bool = False
    ) -> None:
        """RuntimeError that names parameters which have no bucket, or one that is not theirs.

        One that was added has not been made equal on all ranks either.
        """
        known, now = self._as_wrapped, _kinds_of(self.module)
        if now == known:
            return
        both = [name for name in now if name in known]
        trained, was_trained = ({n for n in both if kind[n].is_trained} for kind in (now, known))
        changes = {
            "was added after the module was wrapped": [n for n in now if n not in known],
            "was frozen when the module was wrapped, and is trained now": [
                n for n in both if n in trained - was_trained
            ],
            "was frozen after the module was wrapped": [
                n for n in both if n in was_trained - trained and not may_be_frozen
            ],
            "was converted or moved after the module was wrapped": [
                n for n in both if now[n][1:] != known[n][1:] and not may_be_converted
            ],
        }
        for what, names in changes.items():
            if names:
                raise RuntimeError(
                    f"{', '.join(names)} {what}: ranks would part there. Make such changes first, "
                    "and wrap the module anew"
                )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a wrapper is bound to this process and its group, and cannot be copied or pickled, "
            "since nothing would average the copy's gradients; copy or save its `module`, and wrap "
            "the copy"
        )

    def label_of(self, what: str) -> str:
        """What a message is for; it tells apart modules that are wrapped side by side."""
        return what if self.number == 1 else f"module {self.number}, {what}"

    def _broadcast_buffers(self) -> None:
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


class _Kind(NamedTuple):
    """What a bucket relies on."""

    is_trained: bool
    dtype: torch.dtype
    device: torch.device


def _kinds_of(module: nn.Module) -> dict[str, _Kind]:
    return {n: _Kind(p.requires_grad, p.dtype, p.device) for n, p in module.named_parameters()}


def require_equal_layouts(module: nn.Module, group: Group) -> None:
    """ValueError on a rank whose module differs from rank 0's in more than its values.

    Broadcasting into other shapes would fill them with garbage, without an error.
    """
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    layout = [(name, tuple(x.shape), _order(x), str(x.dtype), x.requires_grad) for name, x in named]
    mine = torch.tensor([zlib.crc32(repr(layout).encode())], device=group.device)
    if not torch.equal(group.broadcast(mine, root=0), mine):
        raise ValueError(
            f"rank {group.rank} has {sum(x.numel() for _, x in named)} numbers in {len(named)} "
            "tensors, and their names, shapes, strides, dtypes or what is frozen differ from "
            "rank 0; build the module from one config on every rank"
        )


def require_plain(module: object) -> None:
    """Raise TypeError unless this is a module that can be wrapped."""
    if not isinstance(module, nn.Module) or isinstance(module, Replica):
        raise TypeError(f"module={module!r:.80}: give a module that is not wrapped yet")
    if any(is_sharded(parameter) for parameter in module.parameters()):
        raise TypeError(
            "the parameters of this module are shards, or have been sharded: each rank has others, "
            "and wrapped again they would be overwritten by rank 0's. Wrap the module only once"
        )


def mark_sharded(parameters: Iterable[Tensor]) -> None:
    """Say that these differ by rank, and must not be made equal."""
    for parameter in parameters:
        parameter.__dict__[_SHARDED] = True


def is_sharded(parameter: Tensor) -> bool:
    """Whether `mark_sharded` has seen it."""
    return _SHARDED in parameter.__dict__


def trained_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, by name; a tied one once. TypeError for no module."""
    require_plain(module)
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _order(x: Tensor) -> list[int]:
    """Strides, as far as they say something: buckets hold elements in the order of memory."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]

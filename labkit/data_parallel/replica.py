"""Replica, a module that is equal on all ranks; its checks, and its hooks.

`require_unwrapped` and `require_equal_layouts` check a module before it is wrapped.
`require_as_wrapped` checks that its parameters have not changed since. `average_in_backward` sets
hooks:

    parameter --hook--> weak reference to a method of the owner     the owner may be freed first
    wrapped module --> hooks --> its wrapper                        the wrapper lives as long

The garbage collector does not see references that a parameter's hooks hold. Strong ones would keep
the owner, the module and its buckets alive for ever.
"""

from __future__ import annotations

import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.comm.operation import verb
from labkit.shards import NamedShard, named_shards

_SHARDED = "_is_sharded_by_labkit"


def require_unwrapped(module: object) -> None:
    """Raise TypeError unless `module` is a module that is neither wrapped nor sharded."""
    if not isinstance(module, nn.Module) or getattr(module, "is_wrapper", False):
        raise TypeError(f"module={module!r:.80}: give a module that is not wrapped yet")
    if any(is_sharded(parameter) for parameter in module.parameters()):
        raise TypeError(
            "the parameters of this module are shards, or have been sharded: they differ by rank, "
            "and another wrapper would overwrite them with rank 0's. Wrap the module only once"
        )


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the unfrozen parameters by name, a tied one once. TypeError: `require_unwrapped`."""
    require_unwrapped(module)
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def mark_sharded(parameters: Iterable[Tensor]) -> None:
    """Mark parameters as shards, which differ by rank and must not be made equal."""
    for parameter in parameters:
        parameter.__dict__[_SHARDED] = True


def is_sharded(parameter: Tensor) -> bool:
    """Return whether `mark_sharded` has marked it."""
    return _SHARDED in parameter.__dict__


def require_equal_layouts(module: nn.Module, group: Group) -> None:
    """Raise ValueError if this rank's module differs from rank 0's in more than its values.

    Broadcasting into other shapes would fill them with garbage, without an error.
    """
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    layout = [
        (name, tuple(x.shape), _memory_order(x), str(x.dtype), x.requires_grad) for name, x in named
    ]
    mine = torch.tensor([zlib.crc32(repr(layout).encode())], device=group.device)
    if not torch.equal(group.broadcast(mine, root=0), mine):
        raise ValueError(
            f"rank {group.rank} has {sum(x.numel() for _, x in named)} numbers in {len(named)} "
            "tensors. Their names, shapes, strides, dtypes or requires_grad differ from rank 0's; "
            "build the module from one config on every rank"
        )


def _memory_order(x: Tensor) -> list[int]:
    """Return the strides of dims longer than 1: buckets hold elements in the order of memory."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def shaped_like(part: Tensor, parameter: Tensor) -> Tensor:
    """Return a view of `part`, (numel,), in a parameter's shape and order of dims, without gaps."""
    layout = torch.empty_like(parameter, device="meta")
    return part.as_strided(layout.shape, layout.stride())


def require_plain_numbers(gradient: Tensor | None, name: str) -> None:
    """Raise TypeError for a sparse gradient, and for one that has a graph of its own."""
    if gradient is not None and (gradient.is_sparse or gradient.requires_grad):
        raise TypeError(
            f"the gradient of {name} is sparse or has a graph of its own, and buckets hold plain "
            "numbers: pass sparse=False to the embedding, or leave out create_graph=True"
        )


class Kind(NamedTuple):
    """The properties of a parameter on which a bucket relies."""

    is_trainable: bool
    dtype: torch.dtype
    device: torch.device


def kinds_of(module: nn.Module) -> dict[str, Kind]:
    """Return the kind of each parameter, by name."""
    return {n: Kind(p.requires_grad, p.dtype, p.device) for n, p in module.named_parameters()}


def require_as_wrapped(
    module: nn.Module,
    known: dict[str, Kind],
    *,
    may_be_frozen: bool = False,
    may_be_converted: bool = False,
) -> None:
    """Raise RuntimeError if parameters have changed so that their buckets no longer fit.

    known: the kinds of the parameters when the module was wrapped. The error names parameters that
    were added, unfrozen, frozen, converted or moved.
    """
    now = kinds_of(module)
    if now == known:
        return
    both = [name for name in now if name in known]
    trainable, was_trainable = ({n for n in both if kind[n].is_trainable} for kind in (now, known))
    changes = {
        "added after the module was wrapped": [n for n in now if n not in known],
        "frozen when the module was wrapped, and trained now": [
            n for n in both if n in trainable - was_trainable
        ],
        "frozen after the module was wrapped": [
            n for n in both if n in was_trainable - trainable and not may_be_frozen
        ],
        "converted or moved after the module was wrapped": [
            n for n in both if now[n][1:] != known[n][1:] and not may_be_converted
        ],
    }
    for what, names in changes.items():
        if names:
            raise RuntimeError(
                f"{', '.join(names)} {verb(names, 'was')} {what}: replicas would diverge. Make "
                "such changes first, and wrap the module again"
            )


# Ranks wrap their modules in the same order, or their broadcasts would not match.
_NUM_WRAPPED: WeakKeyDictionary[Group, int] = WeakKeyDictionary()


class Replica(nn.Module):
    """One rank's copy of a module, equal on all ranks from the start: the wrappers' base class.

    `module` keeps its names: save `model.module.state_dict()`. If the module is wrapped again, by
    any strategy, only the newest wrapper reduces. Freeze parameters before you wrap.
    All ranks must make the same number of training passes, or some wait for ever. If one rank has
    fewer batches, stop all ranks when its batches are used up (torch has Join for that).
    Before anything is sent: TypeError for anything but a module, and for a wrapped module.
    ValueError on a rank whose module differs from rank 0's in more than its values.
    """

    is_wrapper = True

    def __init__(
        self, module: nn.Module, group: Group | None = None, *, broadcast_buffers: bool = True
    ) -> None:
        """`group`: None for torch.distributed's default one.

        broadcast_buffers: whether a forward pass in training mode begins with a broadcast of rank
        0's buffers. In eval mode nothing is sent, so an evaluation may run on one rank alone, under
        torch.no_grad().
        """
        super().__init__()
        require_unwrapped(module)
        unhook(module)  # or an earlier wrapper would reduce, too
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

        The mean weighs every rank equally. If the shares of a batch differ in size, scale the loss
        of each rank by `len(share) / len(batch) * group.size` before its backward pass. The length
        is the number of terms in the loss: for padded sequences, the targets that are not ignored.
        """
        raise NotImplementedError

    @property
    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are not frozen, by name; a tied one once."""
        return trainable_parameters(self.module)

    def named_shards(self) -> Iterator[NamedShard]:
        """Yield the shards of the module, for a checkpoint."""
        return named_shards(self.module)

    def label_of(self, what: str) -> str:
        """Return a message's label: `what`, with this wrapper's number unless it is the first."""
        return what if self.number == 1 else f"module {self.number}, {what}"

    def _broadcast_buffers(self) -> None:
        """Broadcast rank 0's buffers, such as running means, in one message per dtype."""
        by_dtype = defaultdict(list)
        for buffer in self.module.buffers():
            by_dtype[buffer.dtype].append(buffer)
        for buffers in by_dtype.values():
            flat = torch.cat([buffer.flatten() for buffer in buffers])
            self.group.broadcast(flat, root=0, out=flat)
            for buffer, part in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
                # .data: an earlier forward pass, whose backward is to come, may have saved this
                # buffer, and autograd would raise an error for the in-place copy.
                buffer.data.copy_(part.view_as(buffer))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a wrapper is bound to this process and its group, and cannot be copied or pickled, "
            "since nothing would average the copy's gradients; copy or save its `module`, and wrap "
            "the copy"
        )


_HOOKS = "_hooks_of_labkit"
# By id of a parameter: the wrapper that averages its gradient in backward.
_AVERAGED_BY: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()


def weakly(method: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Return a call of `method` with these first arguments; it does nothing without its owner."""
    weak = weakref.WeakMethod(method)

    def call(*others: Any, **named: Any) -> Any:
        alive = weak()
        return None if alive is None else alive(*args, *others, **named)

    return call


def on_gradient(parameter: Tensor, method: Callable[..., None], *args: Any) -> RemovableHandle:
    """Call `method(*args, parameter)` when backward has finished a gradient."""
    return parameter.register_post_accumulate_grad_hook(weakly(method, *args))


def remove_with(owner: object, handles: Iterable[RemovableHandle]) -> None:
    """Remove hooks when their owner is gone."""
    weakref.finalize(owner, _remove, handles).atexit = False


def average_in_backward(
    wrapper: nn.Module, module: nn.Module, on_each: Callable[[Tensor], None]
) -> None:
    """Call `on_each(parameter)`, a method of `wrapper`, for every finished gradient of `module`.

    The module keeps its wrapper alive. See `unhook` for a module that is wrapped again.
    TypeError for parameters that another module's wrapper averages: a gradient would be divided by
    the number of ranks twice.
    """
    shared = [name for name, p in module.named_parameters() if is_averaged_in_backward(p)]
    if shared:
        raise TypeError(
            f"{', '.join(shared)}: averaged in backward by the wrapper of another module, and two "
            "wrappers would divide a gradient by the number of ranks twice. Put the modules that "
            "share parameters into one module, and wrap that one alone"
        )
    hooks = _Hooks(wrapper)
    for parameter in module.parameters():
        if parameter.requires_grad:
            _AVERAGED_BY[id(parameter)] = wrapper
            hooks.append(on_gradient(parameter, on_each))
    module.__dict__[_HOOKS] = hooks


def unhook(module: nn.Module) -> None:
    """Remove the hooks of an earlier wrapper of the module, so that only the new one reduces."""
    hooks = module.__dict__.pop(_HOOKS, [])
    _remove(hooks)
    for parameter in module.parameters():
        if _AVERAGED_BY.get(id(parameter)) is getattr(hooks, "wrapper", None):
            _AVERAGED_BY.pop(id(parameter), None)


def is_averaged_in_backward(parameter: Tensor) -> bool:
    """Return whether a wrapper averages the parameter's gradient in backward."""
    return id(parameter) in _AVERAGED_BY


class _Hooks(list[RemovableHandle]):
    """Hooks and their wrapper, as an attribute of the module. A copy of the module has none."""

    def __init__(self, wrapper: nn.Module) -> None:
        super().__init__()
        self.wrapper = wrapper

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return list, ()


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()

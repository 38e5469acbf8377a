"""Activation checkpointing: keep a block's inputs, and compute the rest again when backward asks.

    y = recompute(block, x)         the same y and the same gradients as block(x)

    forward     x ----> block ----> y        what autograd would save is dropped, x is kept
    backward    x ----> block again          what it would have saved is there for as long as it is
                   <--- gradients of the     used, and each is let go after its use
                        block, as ever

A block's activations shrink to its inputs, and one more forward pass of it is paid, up to the last
tensor that it saves: at most a third more computing, where every block is wrapped. Selective is the
same on less: wrap what is large and cheap, such as the scores of attention.

Random numbers are drawn again from the state they were drawn from, so that dropout drops the same.
Of a block that draws other numbers by itself, or looks at what has changed, backward gets tensors
of another block: where their number, shapes or dtypes show it, that is an error. A block that
changes its buffers, as a batch norm does its running means, changes them twice; and parameters that
change between forward and backward give gradients of neither, without an error.

Wire: nothing, unless the block communicates: then it does so again.
Papers: Chen et al., "Training deep nets with sublinear memory cost", arXiv:1604.06174; Korthikanti
et al., arXiv:2205.05198 (selective). The way of hooks on saved tensors is that of
torch.utils.checkpoint with use_reentrant=False.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, of which backward finds only the arguments kept.

    function: a module, or any function of tensors. Its arguments may be any values; tensors among
    them must not be changed in place before backward has passed. RuntimeError in backward where the
    second pass saves something else than the first.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    block = _Block(function, args, kwargs)
    with saved_tensors_hooks(block.drop, block.bring_back):
        result = function(*args, **kwargs)
    return result


class _Block:
    """One call: its arguments, and in backward what was saved when it was computed again."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        self._function = function
        # In autograd's own keeping: it notices when one is changed in place before backward.
        self._inputs = _kept(*tensors)
        numbers = iter(range(len(tensors)))
        self._arguments = tree_map_only(Tensor, lambda _: _Place(next(numbers)), (args, kwargs))
        self._surroundings = _Surroundings(tensors)
        self._dropped: list[tuple[torch.Size, torch.dtype]] = []
        self._saved: dict[int, Any] = {}

    def drop(self, x: Tensor) -> int:
        """Forward: instead of what it would save, autograd keeps its number."""
        self._dropped.append((x.shape, x.dtype))
        return len(self._dropped) - 1

    def bring_back(self, number: int) -> Tensor:
        """Backward asks for it: compute the block again, if this is the first question."""
        if number not in self._saved:
            self._compute_again()
        kept = self._saved.pop(number)
        return kept.grad_fn.saved_tensors[0]

    def _compute_again(self) -> None:
        saved: list[Tensor] = []

        def keep(x: Tensor) -> int:
            saved.append(x.detach())
            if len(saved) == len(self._dropped):
                raise _Enough
            return len(saved) - 1

        args, kwargs = self._given()
        with (
            self._surroundings.again(),
            torch.enable_grad(),
            saved_tensors_hooks(keep, lambda number: saved[number]),
        ):
            try:
                self._function(*args, **kwargs)
            except (_Enough, Exception):
                # TorchScript, and handlers in the function, make another exception of _Enough.
                if len(saved) < len(self._dropped):
                    raise
        self._require_the_same(saved)
        self._saved = {number: _kept(x) for number, x in enumerate(saved)}

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)

    def _given(self) -> Any:
        """Return the arguments, detached: gradients flow through the first pass's graph, not
        through this one."""
        tensors = self._inputs.grad_fn.saved_tensors
        return tree_map_only(
            _Place,
            lambda place: tensors[place].detach().requires_grad_(tensors[place].requires_grad),
            self._arguments,
        )

    def _require_the_same(self, saved: list[Tensor]) -> None:
        found = [(x.shape, x.dtype) for x in saved]
        if found == self._dropped:
            return
        if len(found) != len(self._dropped):
            what = f"{len(found)} tensors, where the first pass saved {len(self._dropped)}"
        else:
            n = next(n for n, (a, b) in enumerate(zip(found, self._dropped, strict=True)) if a != b)
            (shape, dtype), (was, was_dtype) = found[n], self._dropped[n]
            what = (
                f"a tensor of {tuple(shape)} {dtype} as number {n}, where the first pass saved "
                f"{tuple(was)} {was_dtype}"
            )
        raise RuntimeError(
            f"computed again, {self._name} saved {what}: it must do the same both times. "
            "Look for a branch that depends on what has changed, such as a counter or a cache"
        )


class _Place(int):
    """Number of a tensor that stood here among the arguments."""


class _Enough(BaseException):
    """All that was dropped is there: what the block computes after that is not needed.

    No Exception: the block may have handlers for these.
    """


class _Keep(torch.autograd.Function):
    """Save the inputs like any operation, so that meters of memory see them."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # pragma: no cover
        raise AssertionError("nothing flows through it")


def _kept(*tensors: Tensor) -> Any:
    """Tensors in autograd's keeping, as `.grad_fn.saved_tensors` of what this returns.

    Not its grad_fn: in torch 2.11 that lets go of them when the tensor it belongs to is gone.
    """
    with torch.enable_grad():
        return _Keep.apply(torch.empty(0, requires_grad=True), *tensors)


class _Surroundings:
    """State besides its arguments that decides a block's result: random numbers, autocast, modes.

    Of the generators those of the CPU and of the GPUs that hold its tensors. Modes: those that
    change what torch's functions do, such as a pipeline's that defers the weights' gradients.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        kinds = sorted({"cpu", *(x.device.type for x in tensors)})
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in kinds
            if torch.amp.is_autocast_available(kind)
        ]
        self._modes = _get_current_function_mode_stack()
        self._gpus = sorted({x.device.index for x in tensors if x.is_cuda})
        self._cpu_state = torch.get_rng_state()
        self._gpu_states = [torch.cuda.get_rng_state(gpu) for gpu in self._gpus]

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Restore this state inside the block, and the caller's afterwards."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=self._gpus))
            for kind, dtype, enabled in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            for mode in self._modes:
                stack.enter_context(mode)
            torch.set_rng_state(self._cpu_state)
            for gpu, state in zip(self._gpus, self._gpu_states, strict=True):
                torch.cuda.set_rng_state(state, gpu)
            yield

"""What happens around blocks that are checkpointed: passes, random numbers, bytes that stay alive.

On the rank, around the code under test; nothing here judges.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from labkit.grade.graders.checkpoint_inputs import Block, Given, X
from labkit.grade.graders.gradient_modules import left_in, module_of
from labkit.grade.graders.live_storages import LiveStorages
from labkit.grade.harness import is_plain_tensor
from labkit.grade.rules import CalledTheAnswer, labkit_function_in_between, learner_site
from labkit.grade.watched_group import WatchedGroup

_TORCHS_OWN = os.path.join("torch", "utils", "checkpoint.py")


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    passes: list[tuple[int, int]]
    """(block, which random numbers it drew) for each forward pass, in order."""
    kept_bytes: list[int]
    """By call: what it left in memory besides x and its output."""
    kept_after_bytes: int
    """What is there after backward, besides x, output, parameters and gradients."""
    has_graph: bool
    """Whether the output of the last block needs a gradient."""
    is_generator_restored: bool
    """Whether backward left the generator as it was."""
    switched: str
    """The first whose requires_grad is another than before, "x" for the input; empty: none."""
    y: Tensor
    gradients: dict[str, Tensor | None]
    """By name; "x" is the input's."""


class Told(list[Tensor]):
    """What was seen; told apart by its type from whatever the code under test returns."""


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: blocks forward by the code under test, then backward; what was seen.

    Where an output is no tensor, or one that cannot be told: that.
    """
    given = Given(*arguments)
    module = module_of(given.parameters, given.frozen)
    passes: list[tuple[int, int]] = []

    def on_pass(index: int) -> Callable[[Tensor], None]:
        def note(keeps: Tensor) -> None:
            _refuse_the_answer(group)
            passes.append((index, hash(tuple(keeps.flatten().tolist()))))

        return note

    blocks = [
        Block(module.get_submodule(str(i)), given.dropout, on_pass(i))
        for i in range(given.num_blocks)
    ]
    x = given.x.clone().requires_grad_(given.x_needs_gradient)
    torch.manual_seed(given.seed)
    with LiveStorages([x, given.output_gradient, *module.parameters()]) as live:
        kept_bytes, y = _forward(function, blocks, x, live)
        if not is_plain_tensor(y):
            return y
        before = torch.get_rng_state()
        if y.requires_grad and y.shape == given.output_gradient.shape:
            y.backward(given.output_gradient)
        is_restored = torch.equal(torch.get_rng_state(), before)
        kept_after_bytes = live.nbytes - _bytes_of(
            [y, x.grad, *(p.grad for p in module.parameters())]
        )
    needing = [given.x_needs_gradient, *(name not in given.frozen for name in given.names)]
    now = [x.requires_grad, *(module.get_parameter(n).requires_grad for n in given.names)]
    switched = [i for i, pair in enumerate(zip(needing, now, strict=True)) if len({*pair}) > 1]
    numbers = [kept_after_bytes, y.requires_grad, is_restored, *[*switched, -1][:1], *kept_bytes]
    x_gradient = torch.empty(0) if x.grad is None else x.grad
    gradients = left_in(module, given.names)[: len(given.names)]
    told = torch.tensor(passes, dtype=torch.int64).view(-1, 2)
    seen = torch.tensor(numbers, dtype=torch.int64)
    return Told([told, seen, y.detach(), x_gradient, *gradients])


def seen_in(outputs: Sequence[Tensor], given: Given) -> Seen:
    """What `watched` has told, in the driver."""
    passes, numbers, y, *gradients = outputs
    after, has_graph, is_restored, switched, *kept = numbers.tolist()
    names = [X, *given.names]
    return Seen(
        [(block, drawn) for block, drawn in passes.tolist()],
        kept,
        after,
        bool(has_graph),
        bool(is_restored),
        "" if switched < 0 else names[switched],
        y,
        {name: g if g.numel() else None for name, g in zip(names, gradients, strict=True)},
    )


def _forward(
    function: Callable[..., Any], blocks: Sequence[Block], x: Tensor, live: LiveStorages
) -> tuple[list[int], Any]:
    """By call the bytes that it leaves; and the last output, or the first of another form."""
    kept_bytes: list[int] = []
    y: Any = x
    for block in blocks:
        before = live.nbytes
        y = function(block, y)
        if not is_plain_tensor(y) or y.shape != x.shape:
            return kept_bytes, y
        kept_bytes.append(live.nbytes - before - y.untyped_storage().nbytes())
    return kept_bytes, y


def _bytes_of(tensors: Sequence[Tensor | None]) -> int:
    """Of their storages, each once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if t is not None}
    return sum(storage.nbytes() for storage in storages.values())


def _refuse_the_answer(group: WatchedGroup) -> None:
    """Raise where somebody else's checkpoint runs the block."""
    name = labkit_function_in_between()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and name is None:
        if frame.f_code.co_filename.endswith(_TORCHS_OWN):
            name = f"torch.utils.checkpoint.{frame.f_code.co_name}"
        frame = frame.f_back
    if name is not None:
        message = f"{name} is the answer itself; write it with torch.autograd.Function"
        raise group.gate.refuse(CalledTheAnswer(message, learner_site()))

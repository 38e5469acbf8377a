"""Checkpoint a block.

An interviewer asks: "The activations of one block are ten times its input, and there are eighty
blocks. Keep the inputs only, and compute a block again when backward gets to it. What does that
cost? What goes wrong with dropout? And with the first block, whose input needs no gradient?"

Write `checkpointed(block, x)`: what `block(x)` returns, of which backward finds x and no more.

Contract
    block    an nn.Module that takes one tensor and returns one. It may draw random numbers, for
             dropout; some of its parameters may be frozen (requires_grad=False)
    x        any tensor of floating-point numbers; it may need a gradient or not
    returns  the output of the block: values as of block(x), and the same gradients, of x and of the
             block's parameters, where these need one. Both passes draw the same random numbers;
             backward leaves the generator as it found it
    Not allowed: torch.utils.checkpoint, and labkit's recompute

Budget, for each call
    passes   the block runs twice: once forward, and once more in backward
    bytes    between the two, x itself (no copy of it) and the state of the generator are kept, and
             besides the output nothing; after backward nothing that was computed again

Of use: torch.autograd.Function, whose forward is not recorded; torch.enable_grad();
torch.autograd.grad(outputs, inputs, grad_outputs); torch.get_rng_state() and set_rng_state(state),
and torch.random.fork_rng(devices=[]), a block after which the generator is as it was before.
"""

from typing import Any

import torch
from torch import nn


def checkpointed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """`block(x)`, which keeps x in the place of its activations."""
    ### BEGIN SOLUTION
    # The parameters are inputs as well: they get gradients where x needs none, too.
    return _Checkpoint.apply(block, x, *block.parameters())


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: nn.Module, x: torch.Tensor, *parameters: nn.Parameter) -> Any:
        ctx.block, ctx.rng_state = block, torch.get_rng_state()
        ctx.save_for_backward(x, *parameters)
        return block(x)

    @staticmethod
    def backward(ctx: Any, output_gradient: torch.Tensor) -> Any:
        x, *parameters = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        x = x.detach().requires_grad_(needed[0])  # the graph of this pass ends at x
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            y = ctx.block(x)
        inputs = [each for each, is_needed in zip((x, *parameters), needed) if is_needed]
        found = iter(torch.autograd.grad(y, inputs, output_gradient))
        return None, *(next(found) if is_needed else None for is_needed in needed)

    ### END SOLUTION

"""Checkpoint a block.

An interviewer asks: "The activations of one block are ten times its input, and there are eighty
blocks. Keep only the inputs, and recompute a block when backward gets to it. What does that cost?
What goes wrong with dropout? And with the first block, whose input needs no gradient?"

Write `checkpointed(block, x)`. It returns what `block(x)` returns, and keeps x for backward instead
of the block's activations.

Contract
    block    an nn.Module that takes one tensor and returns one tensor. It may draw random numbers,
             for example for dropout. Some of its parameters may be frozen (requires_grad=False),
             never all of them
    x        a floating-point tensor of any shape. It may or may not need a gradient
    returns  the output. Its values are those of block(x)
    backward gives x and the block's parameters the gradients that block(x) would give, where they
             need one. The second pass draws the same random numbers as the first. Afterwards the
             generator's state is what it was before backward, and requires_grad of x and of all
             parameters is what it was before the call
    Not allowed: torch.utils.checkpoint and labkit.recompute

Budget, for each call
    passes   the block runs twice: once forward, and once more in backward
    memory   from forward to backward, beside the output: references to x and to parameters (no
             copies), and the generator's state. After backward: nothing that was recomputed

Useful: torch.autograd.Function, whose forward is not recorded; torch.enable_grad();
torch.autograd.grad(outputs, inputs, grad_outputs); torch.get_rng_state() and
torch.set_rng_state(state). `with torch.random.fork_rng(devices=[]):` restores the generator's state
at its end.
"""

from typing import Any

import torch
from torch import nn


def checkpointed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return `block(x)`, and keep x instead of the block's activations."""
    ### BEGIN SOLUTION
    # Parameters are arguments too: so they get gradients even where x needs none.
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
        gradients = iter(torch.autograd.grad(y, inputs, output_gradient))
        return None, *(next(gradients) if is_needed else None for is_needed in needed)

    ### END SOLUTION

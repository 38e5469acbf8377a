"""Mutant: x itself is made to need a gradient, and is the caller's.

outcome: "wrong"
diagnosis: "makes the caller's x need a gradient"
"""

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x, *parameters):
        ctx.block, ctx.rng_state = block, torch.get_rng_state()
        ctx.save_for_backward(x, *parameters)
        return block(x)

    @staticmethod
    def backward(ctx, output_gradient):
        x, *parameters = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        x.requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            y = ctx.block(x)
        inputs = [each for each, is_needed in zip((x, *parameters), needed) if is_needed]
        found = iter(torch.autograd.grad(y, inputs, output_gradient))
        return None, *(next(found) if is_needed else None for is_needed in needed)


def checkpointed(block, x):
    return Checkpoint.apply(block, x, *block.parameters())

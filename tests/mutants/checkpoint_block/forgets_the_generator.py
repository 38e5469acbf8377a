"""Mutant: the second pass draws what comes next.

outcome: "wrong"
diagnosis: "other random numbers in the second pass"
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
        x = x.detach().requires_grad_(needed[0])
        with torch.enable_grad():
            y = ctx.block(x)
        inputs = [each for each, is_needed in zip((x, *parameters), needed) if is_needed]
        found = iter(torch.autograd.grad(y, inputs, output_gradient))
        return None, *(next(found) if is_needed else None for is_needed in needed)


def checkpointed(block, x):
    return Checkpoint.apply(block, x, *block.parameters())

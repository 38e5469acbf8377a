"""Mutant: once for x, and once more for the parameters.

outcome: "over budget"
diagnosis: "runs the block more than twice"
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
        gradients = []
        for each, is_needed in zip((x, *parameters), needed):
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(ctx.rng_state)
                y = ctx.block(x)
            gradients.append(
                torch.autograd.grad(y, each, output_gradient)[0] if is_needed else None
            )
        return None, *gradients


def checkpointed(block, x):
    return Checkpoint.apply(block, x, *block.parameters())

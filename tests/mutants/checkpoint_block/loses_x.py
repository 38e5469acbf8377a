"""Mutant: only the parameters get gradients.

outcome: "wrong"
diagnosis: "the gradient of x is lost"
"""

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        ctx.block, ctx.rng_state = block, torch.get_rng_state()
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, output_gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            y = ctx.block(x)
        y.backward(output_gradient)
        return None, None


def checkpointed(block, x):
    return Checkpoint.apply(block, x)

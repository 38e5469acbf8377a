"""Mutant: the second pass is recorded from x itself.

outcome: "wrong"
diagnosis: "goes back beyond the block"
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
        x = ctx.saved_tensors[0]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            y = ctx.block(x)
        y.backward(output_gradient)
        return None, x.grad


def checkpointed(block, x):
    return Checkpoint.apply(block, x)

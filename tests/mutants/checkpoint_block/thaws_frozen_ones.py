"""Mutant: frozen parameters are trainable after the first backward pass.

outcome: "wrong"
diagnosis: "leaves a frozen parameter trainable"
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
        x = x.detach().requires_grad_()
        for parameter in parameters:
            parameter.requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            y = ctx.block(x)
        found = torch.autograd.grad(y, (x, *parameters), output_gradient)
        return None, *(each if is_needed else None for each, is_needed in zip(found, needed))


def checkpointed(block, x):
    return Checkpoint.apply(block, x, *block.parameters())

"""A model whose gradients one rank takes in another order than the others."""

import torch


def model_with_gradients():
    """Two layers whose weights have one shape, as have their biases."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    return model


def order(world, model):
    """Both weights; on rank 1 the second one first."""
    weights = [p for p in model.parameters() if p.dim() == 2]
    return weights[::-1] if world.rank == 1 else weights

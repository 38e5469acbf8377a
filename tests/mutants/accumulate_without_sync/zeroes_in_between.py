"""Mutant: zero_grad before each backward, out of habit.

outcome: "wrong"
diagnosis: "zeroes gradients between microbatches"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        module.zero_grad()
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)

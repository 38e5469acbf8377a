"""Mutant: backward on each mean loss, as it is.

outcome: "wrong"
diagnosis: "forgets to divide by the number of microbatches"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        loss_fn(module, microbatch).backward()
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)

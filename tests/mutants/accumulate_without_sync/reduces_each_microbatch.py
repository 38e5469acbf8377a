"""Mutant: an all-reduce after each backward.

outcome: "over budget"
diagnosis: "communicates for every microbatch"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        (loss_fn(module, microbatch) / len(microbatches)).backward()
        for parameter in module.parameters():
            group.all_reduce(parameter.grad, op="mean", out=parameter.grad)

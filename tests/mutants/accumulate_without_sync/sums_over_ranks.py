"""Mutant: an all-reduce without the mean.

outcome: "wrong"
diagnosis: "sums over the ranks instead of averaging"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter in module.parameters():
        parameter.grad = group.all_reduce(parameter.grad)

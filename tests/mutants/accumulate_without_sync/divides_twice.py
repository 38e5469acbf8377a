"""Mutant: the losses, and then the gradients.

outcome: "wrong"
diagnosis: "divides by the number of microbatches twice"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter in module.parameters():
        parameter.grad /= len(microbatches) * group.size
        group.all_reduce(parameter.grad, out=parameter.grad)

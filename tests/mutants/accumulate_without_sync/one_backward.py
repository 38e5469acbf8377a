"""Mutant: the losses are added up, for one backward.

outcome: "over budget"
diagnosis: "keeps the activations of several microbatches"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    losses = [loss_fn(module, microbatch) for microbatch in microbatches]
    (sum(losses) / len(losses)).backward()
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)

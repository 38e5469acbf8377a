"""Mutant: retain_graph=True, which makes an error go away that is not there, and keeps the losses.

outcome: "over budget"
diagnosis: "keeps activations after backward"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    losses = []
    for microbatch in microbatches:
        losses.append(loss_fn(module, microbatch) / len(microbatches))
        losses[-1].backward(retain_graph=True)
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)

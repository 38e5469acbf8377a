"""Mutant: no_sync the wrong way round: everything but the last is reduced.

outcome: "wrong"
diagnosis: "the last microbatch is not averaged"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    *before, last = microbatches
    for microbatch in before:
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter in module.parameters():
        if parameter.grad is not None:
            group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
    (loss_fn(module, last) / len(microbatches)).backward()

"""Mutant: no all-reduce, for any microbatch.

outcome: "wrong"
diagnosis: "does not average over the ranks"
"""


def accumulate_without_sync(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        (loss_fn(module, microbatch) / len(microbatches)).backward()

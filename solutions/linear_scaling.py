"""Learning rate and number of steps for a large batch.

An interviewer asks: "This model trains well on one GPU with a batch of 256 and a learning rate of
0.1. Now you have 64 GPUs, and each adds up 4 gradients before a step. What learning rate, and how
do you begin? How many steps is that, if the model is to see as much data as before?"

A setup is a dict:

    base_rate        the learning rate that was right for base_batch
    base_batch       samples per step in the run that worked
    per_rank         samples in one forward and backward pass of one rank
    num_ranks        ranks, each with samples of its own; gradients are averaged over all of them
    num_accumulated  how many such passes a rank makes for one step of the optimizer
    warmup_steps     in how many steps the learning rate gets to its full height; may be 0
    start            the learning rate of step 0, where there is a warmup

Write four functions. A step is a step of the optimizer.

    global_batch(setup)                  samples whose gradients are averaged for one step
    learning_rate(step, setup)           that of step number `step`, counted from 0. Linear scaling:
                                         k times the batch, k times the rate, above and below 1.
                                         Gradual warmup: from start at step 0, in a straight line,
                                         to the full rate, which is there at step warmup_steps and
                                         stays
    steps_per_epoch(num_samples, setup)  steps until each of num_samples has been seen once; the
                                         last one may have fewer than the others
    total_steps(base_steps, setup)       steps of this setup that see as many samples as base_steps
                                         steps of base_batch did, or as few more as possible

Contract
    returns  learning_rate a number, to nine digits; the others whole numbers, as int
    never    labkit.large_batch. It is a few lines

Papers: Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677, sections 2.1 and 2.2.
"""

from collections.abc import Mapping
from typing import Any


def global_batch(setup: Mapping[str, Any]) -> int:
    """Samples whose gradients are averaged for one step of the optimizer."""
    ### BEGIN SOLUTION
    return setup["per_rank"] * setup["num_ranks"] * setup["num_accumulated"]
    ### END SOLUTION


def learning_rate(step: int, setup: Mapping[str, Any]) -> float:
    """Of step number `step`, from 0: linear scaling, reached by a gradual warmup."""
    ### BEGIN SOLUTION
    rate = setup["base_rate"] * global_batch(setup) / setup["base_batch"]
    if step >= setup["warmup_steps"]:
        return rate
    return setup["start"] + (rate - setup["start"]) * step / setup["warmup_steps"]
    ### END SOLUTION


def steps_per_epoch(num_samples: int, setup: Mapping[str, Any]) -> int:
    """Steps of the optimizer that see each sample once."""
    ### BEGIN SOLUTION
    return -(-num_samples // global_batch(setup))  # rounded up: what is left over is a step, too
    ### END SOLUTION


def total_steps(base_steps: int, setup: Mapping[str, Any]) -> int:
    """Steps that see as many samples as `base_steps` steps of base_batch, or few more."""
    ### BEGIN SOLUTION
    return steps_per_epoch(base_steps * setup["base_batch"], setup)
    ### END SOLUTION

"""Learning rate and number of steps for a large batch.

An interviewer asks: "This model trains well on one GPU with a batch of 256 and a learning rate of
0.1. Now you have 64 GPUs, and each accumulates gradients over 4 passes before a step. Which
learning rate do you use, and how do you start? How many steps see as much data as before?"

A setup is a dict. All of its keys are always there.

    base_rate        the learning rate that worked with base_batch
    base_batch       samples per step in the run that worked
    per_rank         samples in one forward and backward pass of one rank
    num_ranks        number of ranks; each has other samples, and gradients are averaged over ranks
    num_accumulated  passes of each rank for one step of the optimizer
    warmup_steps     number of steps after which the full learning rate is reached; may be 0
    start            the learning rate at step 0, if there is a warmup

Write four functions. A step is a step of the optimizer.

    global_batch(setup)                  the number of samples whose gradients are averaged for one
                                         step
    learning_rate(step, setup)           the learning rate of step number `step`, counted from 0.
                                         Linear scaling: k times the batch has k times the rate,
                                         also for k below 1. Gradual warmup: a straight line from
                                         start at step 0 to the full rate at step warmup_steps. From
                                         then on it is the full rate
    steps_per_epoch(num_samples, setup)  the smallest whole number of steps with
                                         steps * global_batch >= num_samples
    total_steps(base_steps, setup)       the smallest whole number of steps with
                                         steps * global_batch >= base_steps * base_batch

Contract
    returns  learning_rate returns a number, right to nine digits. The other functions return an
             int, exactly
    never    labkit.large_batch. A few lines are enough

Papers: Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677, sections 2.1 and 2.2.
"""

from collections.abc import Mapping
from typing import Any


def global_batch(setup: Mapping[str, Any]) -> int:
    """Return the number of samples whose gradients are averaged for one step."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def learning_rate(step: int, setup: Mapping[str, Any]) -> float:
    """Return the rate of step number `step`, from 0: linear scaling after a gradual warmup."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def steps_per_epoch(num_samples: int, setup: Mapping[str, Any]) -> int:
    """Return how many steps see each sample once."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def total_steps(base_steps: int, setup: Mapping[str, Any]) -> int:
    """Return how many steps see as many samples as `base_steps` steps of base_batch."""
    raise NotImplementedError("not attempted yet: your code replaces this line")

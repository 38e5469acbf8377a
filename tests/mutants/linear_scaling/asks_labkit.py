"""Mutant: lets labkit scale and warm up.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from labkit.large_batch import scaled_learning_rate, warmed_up


def global_batch(setup):
    return setup["per_rank"] * setup["num_ranks"] * setup["num_accumulated"]


def learning_rate(step, setup):
    rate = scaled_learning_rate(setup["base_rate"], global_batch(setup), setup["base_batch"])
    return warmed_up(rate, step, setup["warmup_steps"], setup["start"])


def steps_per_epoch(num_samples, setup):
    return -(-num_samples // global_batch(setup))


def total_steps(base_steps, setup):
    return steps_per_epoch(base_steps * setup["base_batch"], setup)

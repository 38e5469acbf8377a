"""Mutant: takes a warmup for granted.

outcome: "crashed"
diagnosis: "raises ZeroDivisionError"
"""


def global_batch(setup):
    return setup["per_rank"] * setup["num_ranks"] * setup["num_accumulated"]


def learning_rate(step, setup):
    rate = setup["base_rate"] * global_batch(setup) / setup["base_batch"]
    share = min(1, step / setup["warmup_steps"])
    return setup["start"] + (rate - setup["start"]) * share


def steps_per_epoch(num_samples, setup):
    return -(-num_samples // global_batch(setup))


def total_steps(base_steps, setup):
    return steps_per_epoch(base_steps * setup["base_batch"], setup)

"""Mutant: the line has the full height above start.

outcome: "wrong"
diagnosis: "adds start to the line"
"""


def global_batch(setup):
    return setup["per_rank"] * setup["num_ranks"] * setup["num_accumulated"]


def learning_rate(step, setup):
    rate = setup["base_rate"] * global_batch(setup) / setup["base_batch"]
    if step >= setup["warmup_steps"]:
        return rate
    return setup["start"] + rate * step / setup["warmup_steps"]


def steps_per_epoch(num_samples, setup):
    return -(-num_samples // global_batch(setup))


def total_steps(base_steps, setup):
    return steps_per_epoch(base_steps * setup["base_batch"], setup)

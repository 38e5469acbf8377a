"""Mutant: spreads the warmup over one step more.

outcome: "wrong"
diagnosis: "off by one at the end of the warmup"
"""


def global_batch(setup):
    return setup["per_rank"] * setup["num_ranks"] * setup["num_accumulated"]


def learning_rate(step, setup):
    rate = setup["base_rate"] * global_batch(setup) / setup["base_batch"]
    if step > setup["warmup_steps"]:
        return rate
    return setup["start"] + (rate - setup["start"]) * step / (setup["warmup_steps"] + 1)


def steps_per_epoch(num_samples, setup):
    return -(-num_samples // global_batch(setup))


def total_steps(base_steps, setup):
    return steps_per_epoch(base_steps * setup["base_batch"], setup)

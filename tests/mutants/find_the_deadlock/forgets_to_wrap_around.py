"""Mutant: lets rank 0 receive from rank -1.

outcome: "wrong"
diagnosis: "not in the form asked for"
"""


def waits_in_shift(world_size):
    return {rank: f"recv from {rank - 1}" for rank in range(world_size)}


def waits_in_pass_it_on(world_size):
    return {}


def waits_in_log_the_loss(world_size):
    return {0: "all_reduce"}


def waits_in_epoch(world_size):
    return dict.fromkeys(range(10 % world_size), "all_reduce")


def waits_in_two_groups(world_size):
    waits = {rank: "barrier" if rank % 2 else "all_reduce" for rank in range(world_size)}
    if world_size % 2:
        waits[world_size - 1] = "barrier"
    return waits

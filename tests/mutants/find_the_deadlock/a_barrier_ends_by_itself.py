"""Mutant: sees the ranks that wait for their partner, and not those at the barrier.

outcome: "wrong"
diagnosis: "overlooks ranks that wait"
"""


def waits_in_shift(world_size):
    return {rank: f"recv from {(rank - 1) % world_size}" for rank in range(world_size)}


def waits_in_pass_it_on(world_size):
    return {}


def waits_in_log_the_loss(world_size):
    return {0: "all_reduce"}


def waits_in_epoch(world_size):
    return dict.fromkeys(range(10 % world_size), "all_reduce")


def waits_in_two_groups(world_size):
    return dict.fromkeys(range(0, world_size - world_size % 2, 2), "all_reduce")

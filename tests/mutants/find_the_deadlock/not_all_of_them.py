"""Mutant: two of the five are right, and the others are still stubs.

outcome: "not attempted"
diagnosis: "a part is still to be written"
"""


def waits_in_shift(world_size):
    return {rank: f"recv from {(rank - 1) % world_size}" for rank in range(world_size)}


def waits_in_pass_it_on(world_size):
    return {}


def waits_in_log_the_loss(world_size):
    raise NotImplementedError


def waits_in_epoch(world_size):
    raise NotImplementedError


def waits_in_two_groups(world_size):
    raise NotImplementedError

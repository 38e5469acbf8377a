"""Mutant: blames the ranks with fewer batches, and so everyone where batches are dealt evenly.

outcome: "wrong"
diagnosis: "names the ranks that have left"
"""


def waits_in_shift(world_size):
    return {rank: f"recv from {(rank - 1) % world_size}" for rank in range(world_size)}


def waits_in_pass_it_on(world_size):
    return {}


def waits_in_log_the_loss(world_size):
    return {0: "all_reduce"}


def waits_in_epoch(world_size):
    return dict.fromkeys(range(10 % world_size, world_size), "all_reduce")


def waits_in_two_groups(world_size):
    waits = {rank: "barrier" if rank % 2 else "all_reduce" for rank in range(world_size)}
    if world_size % 2:
        waits[world_size - 1] = "barrier"
    return waits

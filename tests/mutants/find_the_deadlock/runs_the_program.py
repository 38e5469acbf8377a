"""Mutant: runs the program and reads the answer off the error.

outcome: "wrong"
diagnosis: "runs something instead of answering"
"""

import torch

from labkit import run


def shift(world):
    world.recv(torch.empty(4), (world.rank - 1) % world.size)


def waits_in_shift(world_size):
    try:
        run(shift, world_size, timeout=3)
    except Exception as error:
        return dict.fromkeys(range(world_size), "recv from 0")


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

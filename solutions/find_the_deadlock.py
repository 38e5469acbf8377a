"""Say which ranks wait for ever, and in what.

An interviewer asks: "Here are five small programs. For each: does it end, on n ranks? If it does
not, which ranks are stuck, and in which call?"

Write the five functions `waits_in_...(world_size)`, one for each program. A rank may be stuck for
some world sizes and not for others. Each check runs the programs for real, on 2 to 6 processes, and
compares your answers with what the ranks' journals show. (Changing the programs here changes
nothing: the check has its own copy.)

Contract
    world_size  the number of ranks, 2 or more
    returns     a dict of the ranks that wait for ever: rank -> what it waits in, as text:
                "send to 2", "recv from 0", or the name of a collective, such as "all_reduce" or
                "barrier". Ranks that return are not in it; {} if all of them do
    may use     no process: what the functions return is thought out, and they run nothing

What a call waits for
    send, recv  the other side's recv, or send: nothing is kept on the way
    collective  every member of its group to make the call
    returning   a rank that has returned makes no more calls

Once you have an answer, you can see its program hang, in a notebook in notebooks/:
%run ../exercises/find_the_deadlock.py, then from labkit import run, and run(shift, 3).
"""

import torch

from labkit.comm import Group


def shift(world: Group) -> None:
    """Every rank takes its left neighbour's numbers and gives its own to the right one."""
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    world.recv(torch.empty(4), left)
    world.send(torch.ones(4), right)


def waits_in_shift(world_size: int) -> dict[int, str]:
    ### BEGIN SOLUTION
    # Nobody has sent anything: all are in their first call.
    return {rank: f"recv from {(rank - 1) % world_size}" for rank in range(world_size)}
    ### END SOLUTION


def pass_it_on(world: Group) -> None:
    """As `shift`, with the send first; but for rank 0."""
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    if world.rank == 0:
        world.recv(torch.empty(4), left)
        world.send(torch.ones(4), right)
    else:
        world.send(torch.ones(4), right)
        world.recv(torch.empty(4), left)


def waits_in_pass_it_on(world_size: int) -> dict[int, str]:
    ### BEGIN SOLUTION
    # The last rank's send meets rank 0's recv; so the last rank receives, which lets the one before
    # it go on, and so on down to rank 1, which receives what rank 0 sends after its recv.
    return {}
    ### END SOLUTION


def log_the_loss(world: Group) -> None:
    """A training step; rank 0 prints the loss."""
    grad, loss = torch.ones(4), torch.ones(1)
    world.all_reduce(grad)
    if world.rank == 0:
        print("loss", world.all_reduce(loss, "mean"))


def waits_in_log_the_loss(world_size: int) -> dict[int, str]:
    ### BEGIN SOLUTION
    # The others have come through their only all_reduce and returned.
    return {0: "all_reduce"}
    ### END SOLUTION


def epoch(world: Group) -> None:
    """Ten batches, dealt to the ranks like cards."""
    for _batch in range(world.rank, 10, world.size):
        world.all_reduce(torch.ones(4))


def waits_in_epoch(world_size: int) -> dict[int, str]:
    ### BEGIN SOLUTION
    # The first 10 % world_size ranks have a batch more. Where that is none, everyone returns.
    return dict.fromkeys(range(10 % world_size), "all_reduce")
    ### END SOLUTION


def two_groups(world: Group) -> None:
    """Pairs of ranks (0 and 1, 2 and 3, ...) share a gradient, and everyone meets at a barrier."""
    pair = world.split(world.rank // 2)
    if world.rank % 2 == 0:
        pair.all_reduce(torch.ones(4))
        world.barrier()
    else:
        world.barrier()
        pair.all_reduce(torch.ones(4))


def waits_in_two_groups(world_size: int) -> dict[int, str]:
    ### BEGIN SOLUTION
    waits = {rank: "barrier" if rank % 2 else "all_reduce" for rank in range(world_size)}
    if world_size % 2:
        # The last rank is a pair of its own: nobody else is needed, so it comes to the barrier.
        waits[world_size - 1] = "barrier"
    return waits
    ### END SOLUTION

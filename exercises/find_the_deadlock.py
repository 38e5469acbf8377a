"""Say which ranks wait forever, and in which call.

An interviewer asks: "Here are five small programs. For each: does it end, on n ranks? If it does
not, which ranks are stuck, and in which call?"

Write the five functions `waits_in_...(world_size)`, one for each program below. A rank may be stuck
for some world sizes and return for others.

Contract
    world_size  the number of ranks, 2 or more
    returns     a dict {rank: call} of the ranks that wait forever. The call is the one in which the
                rank waits, as text: "send to 2", "recv from 0", or the name of a collective, such
                as "all_reduce" or "barrier". Ranks that return are not in the dict. It is {} if all
                ranks return
    uses        plain Python only. Start no processes, and run none of the programs. A simulation of
                your own is fine

When a call completes
    send, recv  when the other rank is in the matching recv or send. Nothing is buffered
    collective  when every member of its group is in the same call
    A rank that has returned makes no more calls.

The check has its own copy of the programs, so changing them here changes nothing. Once you have an
answer, you can watch its program hang in a notebook in notebooks/:
%run ../exercises/find_the_deadlock.py, then from labkit import run, and run(shift, 3).
"""

import torch

from labkit.comm import Group


def shift(world: Group) -> None:
    """Receive from the left neighbour, then send to the right one, on every rank."""
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    world.recv(torch.empty(4), left)
    world.send(torch.ones(4), right)


def waits_in_shift(world_size: int) -> dict[int, str]:
    raise NotImplementedError("not attempted yet: your code replaces this line")


def pass_it_on(world: Group) -> None:
    """Send to the right neighbour first, on every rank but rank 0."""
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    if world.rank == 0:
        world.recv(torch.empty(4), left)
        world.send(torch.ones(4), right)
    else:
        world.send(torch.ones(4), right)
        world.recv(torch.empty(4), left)


def waits_in_pass_it_on(world_size: int) -> dict[int, str]:
    raise NotImplementedError("not attempted yet: your code replaces this line")


def log_the_loss(world: Group) -> None:
    """Average gradients in a training step, and print the mean loss on rank 0."""
    grad, loss = torch.ones(4), torch.ones(1)
    world.all_reduce(grad)
    if world.rank == 0:
        print("loss", world.all_reduce(loss, "mean"))


def waits_in_log_the_loss(world_size: int) -> dict[int, str]:
    raise NotImplementedError("not attempted yet: your code replaces this line")


def epoch(world: Group) -> None:
    """Deal ten batches to the ranks in turn, with one all_reduce per batch."""
    for _batch in range(world.rank, 10, world.size):
        world.all_reduce(torch.ones(4))


def waits_in_epoch(world_size: int) -> dict[int, str]:
    raise NotImplementedError("not attempted yet: your code replaces this line")


def two_groups(world: Group) -> None:
    """Add up a gradient in pairs of ranks (0 and 1, 2 and 3, ...), and meet at a barrier."""
    pair = world.split(world.rank // 2)
    if world.rank % 2 == 0:
        pair.all_reduce(torch.ones(4))
        world.barrier()
    else:
        world.barrier()
        pair.all_reduce(torch.ones(4))


def waits_in_two_groups(world_size: int) -> dict[int, str]:
    raise NotImplementedError("not attempted yet: your code replaces this line")

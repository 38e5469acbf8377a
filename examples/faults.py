"""Every way in which distributed programs go wrong, caused for real, and the verdict on each.

    python examples/faults.py                    all of them, on 3 ranks
    python examples/faults.py another_shape -n 4

Twenty-two faults, and a straggler, which is not a fault. Each program below is wrong on rank 1
only. The lines marked `# <-` are those that the verdict must name
(tests/faults/test_fault_table.py). What plain torch does with the same program was measured with
torch 2.13 and gloo.
"""

import argparse
import os
import signal
import textwrap
import time

import torch
import torch.distributed as dist

import labkit
from labkit import arguments

FAULTS = {}
STALL_S = 1.5
CULPRIT = 1  # a test makes it another rank, where any can be wrong


def fault(torch_says, timeout_s=15.0):
    """Enter a program into the table; `torch_says`: what torch does without a lab around it."""

    def enter(program):
        program.torch_says, program.timeout_s = torch_says, timeout_s
        FAULTS[program.__name__] = program
        return program

    return enter


@fault("a timeout after 30 minutes that blames an innocent rank", timeout_s=3.0)
def never_calls(world):
    """Rank 1 waits for something else for ever, and never comes to the collective."""
    while world.rank == CULPRIT:
        time.sleep(0.05)  # <-
    world.all_reduce(torch.ones(3))  # <-


@fault('"Connection closed by peer", on the ranks that did nothing wrong')
def returns_early(world):
    """Rank 1 has one batch less than the others."""
    for _batch in range(3 if world.rank == CULPRIT else 4):
        world.all_reduce(torch.ones(3))  # <-


@fault("a timeout")
def another_collective(world):
    """Rank 1 takes the wrong branch."""
    if world.rank == CULPRIT:
        world.barrier()  # <-
    else:
        world.all_reduce(torch.ones(3))  # <-


@fault("garbage in silence on some ranks, and a timeout on the others")
def another_shape(world):
    """Rank 1 has a smaller last batch."""
    x = torch.ones(3 if world.rank == CULPRIT else 4)
    world.all_reduce(x)  # <-


@fault("the process aborts in C++, with no traceback")
def another_dtype(world):
    """Rank 1 has float64 numbers."""
    x = torch.ones(3, dtype=torch.float64 if world.rank == CULPRIT else torch.float32)
    world.all_reduce(x)  # <-


@fault("nothing: wrong sums in silence, also with TORCH_DISTRIBUTED_DEBUG=DETAIL")
def swapped_calls(world):
    """Rank 1 reduces the same two tensors in the other order."""
    weight, bias = torch.ones(3), torch.zeros(3)
    if world.rank == CULPRIT:
        world.all_reduce(bias)  # <-
        world.all_reduce(weight)  # <-
    else:
        world.all_reduce(weight)  # <-
        world.all_reduce(bias)  # <-


@fault("nothing: wrong sums in silence, also with TORCH_DISTRIBUTED_DEBUG=DETAIL")
def loop_in_another_order(world):
    """Rank 1 goes through the same tensors in the other order, on the same line."""
    tensors = {"weight": torch.ones(3), "bias": torch.zeros(3)}
    for name in sorted(tensors, reverse=world.rank == CULPRIT):
        with world.label(name):  # the call's purpose: both turns are one line
            world.all_reduce(tensors[name])  # <-


@fault("nothing: the tensors change places in silence")
def messages_in_another_order(world):
    """Rank 0 sends two tensors of one shape, and rank 1 receives them in the other order."""
    if world.rank < 2:
        for name in sorted(["weight", "bias"], reverse=world.rank == 1):
            with world.label(name):
                if world.rank == 0:
                    world.send(torch.ones(3), dst=1)  # <-
                else:
                    world.recv(torch.empty(3), src=0)  # <-


@fault("nothing: wrong numbers in silence, also with TORCH_DISTRIBUTED_DEBUG=DETAIL")
def another_reduce_op(world):
    """Rank 1 takes the maximum, the others the sum."""
    world.all_reduce(torch.ones(3), "max" if world.rank == CULPRIT else "sum")  # <-


@fault("a timeout, also with TORCH_DISTRIBUTED_DEBUG=DETAIL")
def send_against_send(world):
    """Ranks 0 and 1 both send before they receive."""
    if world.rank < 2:
        world.send(torch.ones(3), dst=1 - world.rank)  # <-
        world.recv(torch.empty(3), src=1 - world.rank)


@fault("a timeout")
def another_root(world):
    """Rank 1 names itself as the root."""
    world.broadcast(torch.ones(3), root=1 if world.rank == 1 else 0)  # <-


@fault("a timeout")
def receives_what_nobody_sends(world):
    """Rank 0 counts on a message that rank 1 does not send."""
    world.barrier()  # <-
    if world.rank == 0:
        world.recv(torch.empty(3), src=1)  # <-


@fault("a timeout")
def everybody_receives_first(world):
    """A ring in which all wait for their left neighbour before they send to the right one."""
    world.recv(torch.empty(3), src=(world.rank - 1) % world.size)  # <-
    world.send(torch.ones(3), dst=(world.rank + 1) % world.size)


@fault("the receiver aborts in C++")
def message_too_long(world):
    """Rank 1 sends more than rank 0 has room for."""
    if world.rank == 1:
        world.send(torch.ones(5), dst=0)  # <-
    if world.rank == 0:
        world.recv(torch.empty(3), src=1)  # <-


@fault("nothing: half of the buffer keeps what was in it")
def message_too_short(world):
    """Rank 1 sends less than rank 0 waits for."""
    if world.rank == 1:
        world.send(torch.ones(2), dst=0)  # <-
    if world.rank == 0:
        world.recv(torch.empty(3), src=1)  # <-


@fault("the receiver aborts in C++")
def uneven_rows(world):
    """Rank 1 sends rank 0 three rows, and rank 0 expects two."""
    splits = [3 if world.rank == 1 and peer == 0 else 2 for peer in range(world.size)]
    rows = torch.ones(sum(splits), 4)
    world.all_to_all(rows, splits, [2] * world.size)  # <-


@fault("a timeout")
def groups_in_another_order(world):
    """Two groups with the same members; rank 1 enters the second one first."""
    first, second = world.split(0), world.split(0)
    if world.rank == CULPRIT:
        first, second = second, first
    first.all_reduce(torch.ones(3))  # <-
    second.all_reduce(torch.ones(3))


@fault("a warning, and the tensor comes back as it was")
def not_a_member(world):
    """Rank 1 uses a group that it does not belong to."""
    others = world.split(None if world.rank == CULPRIT else 0)
    others.all_reduce(torch.ones(3))  # <-


@fault("nothing: the others only wait")
def straggles(world):
    """Rank 1 is late, but it comes: no fault, and no error."""
    if world.rank == CULPRIT:
        time.sleep(2 * STALL_S)  # <-
    world.all_reduce(torch.ones(3))  # <-


@fault('"Connection closed by peer", on the others')
def is_killed(world):
    """Rank 1 is ended from outside, as by the system when memory runs out."""
    if world.rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    world.all_reduce(torch.ones(3))  # <-


@fault("rank 1's traceback among those of all the others")
def raises(world):
    """Rank 1 has an ordinary bug."""
    if world.rank == CULPRIT:
        raise KeyError("loss")  # <-
    world.all_reduce(torch.ones(3))  # <-


@fault("a timeout on the others")
def torchs_own_ddp(world):
    """Rank 1 skips a backward pass of torch's own DistributedDataParallel."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    loss = model(torch.ones(1, 3)).sum()
    if world.rank != CULPRIT:
        loss.backward()  # <-


@fault("garbage in silence on some ranks, and a timeout on the others")
def torchs_own_all_reduce(world):
    """Outside labkit's Group API: rank 1 hands torch.distributed another shape."""
    x = torch.ones(3 if world.rank == CULPRIT else 4)
    dist.all_reduce(x)  # <-


def cause(program, world_size):
    """(verdict, seconds): what labkit says about a program that is wrong."""
    began = time.monotonic()
    try:
        labkit.run(program, world_size, timeout=program.timeout_s, stall=STALL_S, device="cpu")
        verdict = "no error: every rank returned"
    except labkit.RunError as error:
        verdict = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return verdict, time.monotonic() - began


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="fault", help=", ".join(FAULTS))
    parser.add_argument("-n", "--world-size", type=arguments.count, default=3, help="ranks; 3")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in FAULTS]
    if unknown or chosen.world_size < 2:
        parser.error(f"unknown: {unknown}" if unknown else "faults need 2 ranks or more")
    # The first run of a process imports torch; the seconds below are to be the faults' own.
    labkit.run(lambda world: None, chosen.world_size)
    for name in chosen.names or FAULTS:
        program = FAULTS[name]
        print(f"\n{name}: {program.__doc__}", flush=True)
        verdict, seconds = cause(program, chosen.world_size)
        for label, text in (("torch", program.torch_says), (f"here, {seconds:.1f} s", verdict)):
            lead = f"  {label + ':':<14}"
            print(textwrap.fill(text, 100, initial_indent=lead, subsequent_indent=" " * 16))


if __name__ == "__main__":
    main()

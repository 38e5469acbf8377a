"""Jobs that do not get on, for straggler_or_deadlock: what the ranks of each do.

Five ranks, in an order that is drawn: `a`, the culprit, and b, c, d, e. a and b are a pair, and so
are c and d; e is alone. All train together for a while; then the story of the job begins.

    compute   a computes; the others wait in an all_reduce of the world
    input     a waits for its input; b receives from a, c from b, d from c; e has returned, and may
    pair      a computes; b waits for it in their pair's group, the others in the world's
    ahead     a computes; the others have posted an all_reduce of the world, and all but b wait for
              it; b is ahead: it has posted the next one, too, and waits for a message from d
    left      a has returned; the others wait in an all_reduce of the world
    silent    a has returned; b waits for a message from it, the others at a barrier for a and b
    sends     a sends to b, b to c, c to a; d waits for a message from a, e for one from d
    aside     a sends to b, b to a; d and e wait as in sends; c computes: nobody needs it
    crossed   a waits for b in the pair's group, b for a at a barrier; the others at that barrier
"""

import threading
import time
from dataclasses import dataclass

import torch

from labkit.comm import Group

FOREVER_S = 3600.0
LATEST_PAUSE_S = 0.25


@dataclass(frozen=True)
class Plan:
    """A job, drawn by the grader."""

    story: str
    order: tuple[int, ...]
    """The ranks a, b, c, d, e."""
    num_steps: int
    num_pair_steps: int
    pauses_s: tuple[float, ...]
    """By rank: how late it is when the story begins."""
    busy: tuple[int, ...]
    """Ranks whose data loader, a thread, keeps a core busy."""

    @property
    def has_busy_core(self) -> bool:
        """Whether some rank computes, or its data loader does."""
        return bool(self.busy) or self.story in COMPUTING


def job(world: Group, plan: Plan) -> None:
    """What one rank does."""
    if world.rank in plan.busy:
        threading.Thread(target=compute, daemon=True).start()
    role = plan.order.index(world.rank)
    x = torch.ones(4)
    pair = world.split(role // 2)
    assert isinstance(pair, Group)
    for _ in range(plan.num_steps):
        world.all_reduce(x)
    for _ in range(plan.num_pair_steps):
        pair.all_reduce(x)
    time.sleep(plan.pauses_s[world.rank])
    STORIES[plan.story](world, pair, plan, "abcde"[role])


def compute() -> None:
    """A core at work, most of the time, and no end of it."""
    x, until_s = torch.ones(64, 64), time.monotonic() + FOREVER_S
    while time.monotonic() < until_s:
        for _ in range(500):
            x = (x @ x).clamp(0, 1)
        time.sleep(0.005)


def next_batch() -> None:
    """Input from a slow disk: no use of a core, and no end of it."""
    time.sleep(FOREVER_S)


def _compute(world: Group, pair: Group, plan: Plan, role: str) -> None:
    if role == "a":
        time.sleep(LATEST_PAUSE_S)  # the last to have moved, and yet the one to look at
        world.isend(torch.ones(4), plan.order[1])
        compute()
    world.all_reduce(torch.ones(4))


def _input(world: Group, pair: Group, plan: Plan, role: str) -> None:
    if role == "a":
        next_batch()
    if role in "bcd":
        source = plan.order["abcd".index(role) - 1]
        world.recv(torch.empty(4), source)


def _pair(world: Group, pair: Group, plan: Plan, role: str) -> None:
    if role == "a":
        compute()
    if role == "b":
        pair.all_reduce(torch.ones(4))
    world.all_reduce(torch.ones(4))


def _ahead(world: Group, pair: Group, plan: Plan, role: str) -> None:
    if role == "a":
        compute()
    pending = world.all_reduce(torch.ones(4), wait=False)
    if role == "b":
        following = world.all_reduce(torch.ones(4), wait=False)
        source = plan.order[3]
        world.recv(torch.empty(4), source)
        following.wait()
    pending.wait()


def _left(world: Group, pair: Group, plan: Plan, role: str) -> None:
    if role != "a":
        world.all_reduce(torch.ones(4))


def _silent(world: Group, pair: Group, plan: Plan, role: str) -> None:
    source = plan.order[0]
    if role == "b":
        world.recv(torch.empty(4), source)
    if role in "cde":
        world.barrier()


def _sends(world: Group, pair: Group, plan: Plan, role: str) -> None:
    a, b, c, d, _ = plan.order
    _send_or_receive(world, role, {"a": b, "b": c, "c": a, "d": a, "e": d}[role])


def _aside(world: Group, pair: Group, plan: Plan, role: str) -> None:
    a, b, _, d, _ = plan.order
    if role == "c":
        compute()
    _send_or_receive(world, role, {"a": b, "b": a, "d": a, "e": d}[role])


def _send_or_receive(world: Group, role: str, peer: int) -> None:
    if role in "de":
        source = peer
        world.recv(torch.empty(4), source)
    else:
        target = peer
        world.send(torch.ones(4), target)


def _crossed(world: Group, pair: Group, plan: Plan, role: str) -> None:
    if role != "b":
        pair.all_reduce(torch.ones(4))
    world.barrier()


COMPUTING = frozenset({"compute", "pair", "ahead", "aside"})
STORIES = {
    "compute": _compute,
    "input": _input,
    "pair": _pair,
    "ahead": _ahead,
    "left": _left,
    "silent": _silent,
    "sends": _sends,
    "aside": _aside,
    "crossed": _crossed,
}

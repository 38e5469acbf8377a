"""Rendezvous as it is said to be, and as it is: random orders of actions, on real ranks."""

import random

import pytest
import torch

from labkit.launch import launch
from labkit.launch.errors import Deadlock
from labkit.pipeline import gpipe, naive, one_f_one_b, plan
from labkit.pipeline.messages import (
    MessageError,
    Recv,
    Send,
    Together,
    actions,
    messages_of,
    require_actions,
    require_end,
)
from labkit.pipeline.op import Op

STALL_S = 0.3
EMPTY = torch.empty(1).double()


def shuffled(schedule, rng):
    """The schedule's actions with some neighbours exchanged or posted together, as rules allow."""
    rows = [list(row) for row in actions(schedule)]
    for _ in range(rng.randrange(1, 8) * len(rows)):
        rank = rng.randrange(len(rows))
        row = list(rows[rank])
        at = rng.randrange(len(row) - 1)
        pair = row[at : at + 2]
        if rng.random() < 0.4 and not any(isinstance(each, Op) for each in pair):
            row[at : at + 2] = [Together(messages_of(pair[0]) + messages_of(pair[1]))]
        else:
            row[at : at + 2] = pair[::-1]
        try:
            tried = [*rows[:rank], row, *rows[rank + 1 :]]
            require_actions(schedule, tried)
            require_end(tried)
        except MessageError as error:
            if error.rule != "deadlock":
                continue
        rows = tried
    return tuple(map(tuple, rows))


def number(op, x):
    """A product that tells where it has been."""
    code = 100 * op.stage + 10 * op.microbatch + len(op.kind) + (op.kind == "B")
    return torch.tensor([code + (0 if x is None else 7 * float(x[0]))], dtype=torch.float64)


def perform_row(world, row, num_stages):
    """Each action after the other, by sends and receives that block: what operations yield."""
    values, computed = {}, []
    for action in row:
        if isinstance(action, Op):
            need = action.needs(num_stages)
            values[action.product] = number(action, None if need is None else values[need])
            computed.append(float(values[action.product][0]))
        elif isinstance(action, Send):
            world.send(values[action.product], action.dst)
        elif isinstance(action, Recv):
            values[action.product] = world.recv(torch.empty_like(EMPTY), action.src)
        else:
            with world.together():
                pendings = [post(world, each, values) for each in action.messages]
            for pending in pendings:
                pending.wait()
    return computed


def post(world, message, values):
    if isinstance(message, Send):
        return world.isend(values[message.product], message.dst)
    buffer = values[message.product] = torch.empty_like(EMPTY)
    return world.irecv(buffer, message.src)


def on_ranks(world, schedules):
    """Perform the schedules one after the other; return the values of this rank's operations."""
    return [perform_row(world, rows[world.rank], len(rows)) for rows in schedules]


def by_hand(schedule):
    """Compute the value of each operation without any ranks."""
    values = {}

    def value(product):
        if product not in values:
            op = next(op for row in schedule.rows for op in row if op.product == product)
            need = op.needs(schedule.num_stages)
            values[product] = number(op, None if need is None else torch.tensor([value(need)]))[0]
        return float(values[product])

    return [[value(op.product) for op in row] for row in schedule.rows]


def verdict_of_the_model(rows):
    try:
        require_end(rows)
    except MessageError as error:
        assert error.rule == "deadlock"
        return False
    return True


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_model_of_blocking_messages_agrees_with_gloo(num_ranks):
    rng = random.Random(num_ranks)
    by_verdict = {True: [], False: []}
    while min(map(len, by_verdict.values())) < 2:
        row = rng.choice((one_f_one_b, one_f_one_b, gpipe, naive))
        schedule = plan(row, num_ranks, rng.randrange(1, 6))
        rows = shuffled(schedule, rng)
        by_verdict[verdict_of_the_model(rows)].append((schedule, rows))
    schedules, rows = zip(*by_verdict[True], strict=True)
    values = launch(on_ranks, num_ranks, [(rows,)], device="cpu", echo=False).values
    assert list(zip(*values, strict=True)) == [tuple(by_hand(each)) for each in schedules]
    for _, rows in by_verdict[False][:2]:
        with pytest.raises(Deadlock):
            launch(on_ranks, num_ranks, [([rows],)], device="cpu", stall=STALL_S, echo=False)

"""A row of actions performed on a real group, with sends and receives that block.

What `rendezvous` says of rows can be seen with it: they come to their end, or the run ends with the
doctor's verdict.

    def step(world, rows):
        compute = lambda op, x: torch.ones(4) if x is None else x + 1
        return perform_row(world, rows[world.rank], len(rows), compute, torch.empty(4))

    labkit.run(step, 2, args=(actions(plan(one_f_one_b, 2, 4)),))      # Deadlock
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit.comm import Group, Pending
from labkit.pipeline.messages import Recv, Row, Send, Together
from labkit.pipeline.op import Op, Product

Compute = Callable[[Op, torch.Tensor | None], torch.Tensor]
"""From an operation and what it needs, None where that is nothing of another stage: its product."""


def perform_row(
    world: Group, row: Row, num_stages: int, compute: Compute, like: torch.Tensor
) -> dict[Op, torch.Tensor]:
    """Each action after the other; by operation, what it has yielded.

    like: of the shape and dtype that all products have. Raises what the group raises; KeyError for
    rows that compute or send what is not there (see messages.require_actions).
    Wire: one message per Send.
    """
    values: dict[Product, torch.Tensor] = {}
    computed: dict[Op, torch.Tensor] = {}
    for action in row:
        if isinstance(action, Op):
            need = action.needs(num_stages)
            values[action.product] = compute(action, None if need is None else values[need])
            computed[action] = values[action.product]
        elif isinstance(action, Send):
            world.send(values[action.product], action.dst)
        elif isinstance(action, Recv):
            values[action.product] = world.recv(torch.empty_like(like), action.src)
        else:
            _perform_together(world, action, values, like)
    return computed


def _perform_together(
    world: Group, together: Together, values: dict[Product, torch.Tensor], like: torch.Tensor
) -> None:
    pendings: list[Pending[Any]] = []
    with world.together():
        for message in together.messages:
            if isinstance(message, Send):
                pendings.append(world.isend(values[message.product], message.dst))
            else:
                buffer = values[message.product] = torch.empty_like(like)
                pendings.append(world.irecv(buffer, message.src))
    for pending in pendings:
        pending.wait()

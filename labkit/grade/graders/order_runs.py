"""Rows of actions on real ranks, with messages that block: do they end, with the right values?"""

from collections.abc import Sequence

import torch

from labkit.comm import Group
from labkit.grade.graders.order_questions import Pipe
from labkit.grade.outcome import Finding, Outcome
from labkit.launch import launch
from labkit.launch.errors import Deadlock
from labkit.pipeline import Kind, Op
from labkit.pipeline.blocking import perform_row
from labkit.pipeline.messages import Row

_STALL_S = 2.0
_TIMEOUT_S = 60.0
Values = list[dict[str, float]]
"""By rank: operation -> what it has yielded."""


def product(op: Op, need: float, own: float) -> float:
    """A number that tells where it has been: of what is needed, and of the stage's own forward."""
    code = 1 + op.stage + 10 * op.microbatch + (500 if op.kind is Kind.B else 0)
    return code + 3 * need + 5 * own


def on_rank(world: Group, rows: Sequence[Row]) -> dict[str, float]:
    """Run on every rank: its row."""
    forwards: dict[int, float] = {}

    def compute(op: Op, need: torch.Tensor | None) -> torch.Tensor:
        own = forwards.get(op.microbatch, 0.0)
        value = product(op, 0.0 if need is None else float(need), own)
        forwards.setdefault(op.microbatch, value)
        return torch.tensor(value, dtype=torch.float64)

    like = torch.empty((), dtype=torch.float64)
    done = perform_row(world, rows[world.rank], len(rows), compute, like)
    return {str(op): float(value) for op, value in done.items()}


def by_one_process(pipe: Pipe) -> Values:
    """What every operation yields, without any message."""
    values: Values = [{} for _ in range(pipe.p)]
    for microbatch in range(pipe.m):
        value = 0.0
        for rank in range(pipe.p):
            value = product(Op(Kind.F, rank, microbatch), value, 0.0)
            values[rank][f"F{microbatch}"] = value
        value = 0.0
        for rank in reversed(range(pipe.p)):
            own = values[rank][f"F{microbatch}"]
            value = product(Op(Kind.B, rank, microbatch), value, own)
            values[rank][f"B{microbatch}"] = value
    return values


def wrong_on_ranks(pipe: Pipe, rows: Sequence[Row]) -> Finding | None:
    """What goes wrong on real ranks, or None."""
    try:
        run = launch(
            on_rank,
            pipe.p,
            [(rows,)],
            timeout=_TIMEOUT_S,
            device="cpu",
            stall=_STALL_S,
            echo=False,
        )
    except Deadlock as error:
        return Finding(
            Outcome.HUNG,
            "stands still on real ranks",
            "the rows were performed with blocking messages, and did not come to their end",
            first_seen=str(pipe),
            details=str(error),
        )
    wanted = by_one_process(pipe)
    for rank, (got, expected) in enumerate(zip(run.values, wanted, strict=True)):
        for op, value in expected.items():
            if got.get(op) != value:
                return Finding(
                    Outcome.WRONG,
                    "another microbatch has arrived",
                    f"{op} on rank {rank} has yielded {got.get(op)}, and one process yields "
                    f"{value}: what was received belongs to another operation",
                    first_seen=str(pipe),
                    hint=2,
                )
    return None

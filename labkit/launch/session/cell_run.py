"""What a cell left behind on the ranks of a session."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from typing import Any

from labkit.comm import Lateness, Timeline, Topology
from labkit.comm.words import ranks_named
from labkit.launch.payload import RunDirectory
from labkit.launch.run_result import Memory, Run, Traffic
from labkit.launch.session.session_main import Answered
from labkit.launch.session.session_ranks import CellSupervisor


class Unsent:
    """Stands for a value that stayed on its rank: it cannot be pickled, or is above 64 MiB."""

    def __init__(self, text: str) -> None:
        """text: the value as it prints."""
        self.text = text

    def __repr__(self) -> str:
        return f"<stayed on its rank: {self.text.partition(chr(10))[0][:80]}>"


@dataclass(slots=True, repr=False)
class CellRun(Run):
    """The Run of one cell: `values` are those of its last expression.

    Of a rank that was idle: None, no output, an empty timeline, no traffic and no memory. Printed,
    it shows the values by rank.
    """

    texts: list[str | None] = field(default_factory=list)
    """Each value as it prints on its rank; None where there is none."""

    @property
    def has_values(self) -> bool:
        """Some rank's last expression had a value other than None."""
        return any(text is not None for text in self.texts)

    def __repr__(self) -> str:
        """`ranks 0 and 2: tensor(6.)`, a paragraph for each distinct value."""
        ranks_of: dict[str, list[int]] = {}
        for rank, text in enumerate(self.texts):
            if text is not None:
                ranks_of.setdefault(text, []).append(rank)
        if not ranks_of:
            return f"<a cell on {self.world_size} ranks that ended without a value>"
        return "\n".join(
            f"{ranks_named(ranks)}: {_indented(text, len(ranks_named(ranks)) + 2)}"
            for text, ranks in ranks_of.items()
        )


def _indented(text: str, width: int) -> str:
    return text.replace("\n", "\n" + " " * width)


def cell_run(supervisor: CellSupervisor, device: str, topology: Topology | None) -> CellRun:
    """The result of a cell in which every rank that took part has answered."""
    answers = [
        rank.report if isinstance(rank.report, Answered) else None for rank in supervisor.ranks
    ]
    zero_s = min((answer.start_s for answer in answers if answer), default=supervisor.ready_s)
    end_s = max((answer.end_s for answer in answers if answer), default=supervisor.ready_s)
    timelines = []
    for timeline, answer in zip(supervisor.read_cell(), answers, strict=True):
        span = (answer.start_s, answer.end_s) if answer else (zero_s, end_s)
        timelines.append(Timeline(timeline.operations, timeline.regions, *span))
    return CellRun(
        world_size=len(answers),
        device=device,
        values=[
            _value(supervisor.directory, number, answer) for number, answer in enumerate(answers)
        ],
        logs=[rank.output.log for rank in supervisor.ranks],
        timeline=[timeline.shifted(zero_s) for timeline in timelines],
        traffic=[
            Traffic.of(timeline.operations, answer.socket_bytes if answer else 0)
            for timeline, answer in zip(timelines, answers, strict=True)
        ],
        memory=[answer.memory if answer else Memory(0, 0) for answer in answers],
        seconds=time.monotonic() - supervisor.ready_s,
        topology=topology,
        lateness=[answer.lateness if answer else Lateness() for answer in answers]
        if topology
        else [],
        texts=[answer.text if answer else None for answer in answers],
    )


def _value(directory: RunDirectory, number: int, answer: Answered | None) -> Any:
    if answer is None or answer.text is None:
        return None
    if answer.has_sent:
        try:
            return pickle.loads(directory.of_rank(number, "value").read_bytes())
        except Exception:  # of a class that only the rank knows
            return Unsent(answer.text)
    return Unsent(answer.text)

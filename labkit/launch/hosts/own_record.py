"""What the attendant of a rank knows of it, as the record that stays in the Run's folder."""

from __future__ import annotations

import dataclasses
import time

from labkit.comm.read_journal import read_journal
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.hosts import post_mortem
from labkit.launch.hosts.hosted_rank import HostedSpec
from labkit.launch.ranks.report import Returned
from labkit.launch.saved import stored_value
from labkit.launch.saved.rank_record import Record


def of(spec: HostedSpec, supervisor: Supervisor, started_s: float, order: int = 0) -> Record:
    """The record of the one rank that `supervisor` listens to.

    started_s: when its attendant began, on this host's clock. order: from 1, of ranks that failed
    by themselves; 0 for others.
    """
    (rank,) = supervisor.ranks
    rank.output.read()
    report = rank.report
    timeline = read_journal(spec.directory.of_rank(spec.rank, "journal"))
    supervisor.evidence.read_journals()
    (known,) = supervisor.evidence.views
    view = dataclasses.replace(known, operations=timeline.operations)
    record = Record(
        rank=spec.rank,
        world_size=spec.world_size,
        device=spec.device,
        host=spec.call.places[spec.rank].host,
        stage=rank.stage,
        position=post_mortem.position(view),
        place=post_mortem.place(view),
        clock_s=_clock_s(spec),
        timeline=timeline,
        attempt=spec.call.attempt,
        order=order,
        stack=supervisor.evidence.stacks[0].text,
        failure=post_mortem.failure(rank, timeline),
        seconds=time.monotonic() - started_s,
        ready_seconds=max(supervisor.ready_s - started_s, 0.0),
        log=rank.output.log,
        num_hosts=len({place.host_number for place in spec.call.places}),
    )
    timeline.start_s, timeline.end_s = record.clock_s, time.monotonic()
    if isinstance(report, Returned):
        timeline.start_s, timeline.end_s = report.start_s, report.end_s
        record.memory = (report.memory.start_bytes, report.memory.peak_bytes)
        record.socket_bytes = report.socket_bytes
        dumped = spec.directory.of_rank(spec.rank, "value").read_bytes()
        record.value_kind, record.value = stored_value.encode(dumped)
    return record


def _clock_s(spec: HostedSpec) -> float:
    """The clock of this host when all ranks began; 0 where that never happened."""
    for rank in spec.environment.local_ranks:
        path = spec.directory.of_rank(rank, "clock")
        if path.exists() and (text := path.read_text()):
            return float(text)
    return 0.0

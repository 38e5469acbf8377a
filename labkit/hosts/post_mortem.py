"""The cause of a failed run on several hosts, from the records that its ranks left.

The first error that did not come out of a communication is the cause. Where there is none, ranks
that are gone without a word are. "Connection closed by peer" and timeouts of operations are
consequences.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Mapping, Sequence

from labkit import doctor
from labkit.comm import Operation, Timeline
from labkit.comm.journal import read_journal
from labkit.comm.mismatch import ADVICE, first_difference
from labkit.comm.operation import listed, ranks_named
from labkit.doctor import position as positions
from labkit.doctor import sources
from labkit.doctor.position import grouped_table
from labkit.doctor.verdict import Stage
from labkit.doctor.waiting import View
from labkit.hosts.attempts import RunVerdict
from labkit.hosts.hosted_rank import HostedSpec
from labkit.hosts.rank_record import Failure, Record, encode_value
from labkit.hosts.rendezvous import Place, Rendezvous
from labkit.launch import notes
from labkit.launch.failure import cause_of_death
from labkit.launch.rank import Raised, Returned
from labkit.launch.rank_process import Rank
from labkit.launch.supervise import Supervisor

_WATCHDOG = "Watchdog caught collective operation timeout"


def position(view: View) -> str:
    """Where a rank was at the end; one whose operation failed was in that operation."""
    if failed := _failed_in(view):
        return f"was in {failed.name} ({sources.place(failed.origin)})"
    return positions.position_of(view)


def place(view: View) -> str:
    """The line that its position names; empty where it names none."""
    if failed := _failed_in(view):
        return sources.place(failed.origin)
    return positions.place_of(view)


def _failed_in(view: View) -> Operation | None:
    failed = [operation for operation in view.operations if operation.failed]
    return failed[-1] if view.stage is Stage.RAISED and failed else None


def failure(rank: Rank, timeline: Timeline) -> Failure | None:
    """Return what a rank did instead of returning; None where it did not fail."""
    report = rank.report
    if isinstance(report, Raised):
        return Failure(
            report.type_name,
            report.message,
            sources.with_cells_named(report.traceback).rstrip(),
            report.site,
            # The error itself says so, as on one host (launch/failure.py). The journal does not:
            # an operation that failed earlier may have been caught, and one outside labkit's Group
            # API is not in it.
            is_consequence=report.is_communication_error,
        )
    if rank.stage is not Stage.DIED:
        return None
    code = rank.process.process.exitcode
    return Failure(
        "ProcessDied",
        cause_of_death(code),
        exit_code=code,
        is_consequence=code == -signal.SIGABRT and _was_ended_while_it_waited(rank, timeline),
    )


def _was_ended_while_it_waited(rank: Rank, timeline: Timeline) -> bool:
    """nccl's watchdog aborts a rank whose collective does not end: another rank is the cause."""
    collectives = [each for each in timeline.operations if each.is_collective]
    last = collectives[-1] if collectives else None
    is_open = last is not None and last.done_s is None and not last.failed
    return is_open or _WATCHDOG in rank.output.log


def of(
    rendezvous: Rendezvous,
    found: Mapping[int, Record],
    gone: Mapping[int, str],
    proof: RunVerdict | None = None,
) -> RunVerdict:
    """The verdict from the records that have come, and from who is gone.

    proof: what the doctor had found while all ranks were there (blocked_job.py).
    """
    own = [each for each in found.values() if each.failure and not each.failure.is_consequence]
    if own:
        verdict = _of_culprit(min(own, key=lambda each: each.order or len(rendezvous.places) + 1))
    elif proof is not None:
        verdict = proof
    elif gone:
        verdict = _of_gone(rendezvous, gone)
    else:
        verdict = mismatch(found) or _of_waiting(found, len(rendezvous.places))
    verdict.missing = [place.rank for place in rendezvous.places if place.rank not in found]
    verdict.consequences = {
        rank: _consequence(record) for rank, record in found.items() if rank != verdict.rank
    }
    absent = ["is gone" if each.rank in gone else "has sent no word" for each in rendezvous.places]
    verdict.text += f"\n\nWhere each rank was:\n{_table(found, absent)}"
    return verdict


def _of_culprit(record: Record) -> RunVerdict:
    failure = record.failure
    assert failure is not None
    who = f"rank {record.rank}, on host {record.host},"
    what = f"{who} died: {failure.message}"
    if failure.type_name != "ProcessDied":
        what = f"{who} raised {failure.type_name}: {failure.message}"
        if failure.site is not None:
            at = f"at {sources.place(failure.site)}"
            what = f"{who} raised {failure.type_name} {at}: {failure.message}"
            what += f"\n\n{failure.traceback}"
    return RunVerdict(
        what,
        kind="Mismatch" if failure.type_name == "OperationMismatch" else "RankError",
        rank=record.rank,
        exception_type=failure.type_name,
        traceback=failure.traceback,
        site=failure.site,
        exit_code=failure.exit_code,
    )


def _of_gone(rendezvous: Rendezvous, gone: Mapping[int, str]) -> RunVerdict:
    by_host: dict[int, list[Place]] = {}
    for rank in gone:
        by_host.setdefault(rendezvous.places[rank].host_number, []).append(rendezvous.places[rank])
    parts = []
    for places in by_host.values():
        ranks = [place.rank for place in places]
        who = f"{ranks_named(ranks)} {'is' if len(ranks) == 1 else 'are'} gone"
        host, address = places[0].host, places[0].address
        host += f" ({address})" if address != host else ""
        parts.append(f"{who}: host {host} {gone[ranks[0]]}")
    return RunVerdict(listed(parts), kind="RankError", rank=min(gone), exception_type="ProcessDied")


def mismatch(found: Mapping[int, Record]) -> RunVerdict | None:
    """Return what the journals of different hosts show that no rank could see while it ran."""
    if not found:
        return None
    size = max(found) + 1
    timelines = [found[rank].timeline if rank in found else Timeline() for rank in range(size)]
    difference = first_difference(timelines)
    if difference is None:
        return None
    text = f"{difference.text(sources.place)}. {ADVICE[difference.aspect]}"
    return RunVerdict(text, kind="Mismatch")


def report_unfinished_operations(found: Mapping[int, Record]) -> None:
    """Print what the ranks of a good run have left behind."""
    notes.report_unfinished_operations([found[rank].timeline for rank in range(len(found))])


def _of_waiting(found: Mapping[int, Record], world_size: int) -> RunVerdict:
    """No rank failed by itself and none is gone: they waited for each other, or for too long."""
    failed = [record for record in found.values() if record.failure is not None]
    if len(found) == world_size:
        diagnosis = doctor.diagnose([_before_it_failed(found[r]) for r in range(world_size)])
        if diagnosis.is_proof:
            return RunVerdict(str(diagnosis), kind="Deadlock")
    if not failed:
        return RunVerdict("the run was ended, and no rank that is left knows why")
    first = min(failed, key=lambda each: each.order or world_size + 1)
    assert first.failure is not None
    message = first.failure.message.partition("\n")[0]
    return RunVerdict(
        "no rank raised an error of its own and none is gone, but operations between them failed, "
        f"first on rank {first.rank}: {message}"
    )


def _before_it_failed(record: Record) -> View:
    """A rank whose operation ran into its timeout, or that was ended, when it still waited."""
    operations = record.timeline.operations
    if record.stage is Stage.DIED:
        return View(Stage.RUNNING, operations)
    if record.failure is None or not operations or not operations[-1].failed:
        return View(record.stage, operations)
    waiting = dataclasses.replace(operations[-1], done_s=None, failed=False)
    return View(Stage.RUNNING, [*operations[:-1], waiting])


def _consequence(record: Record) -> str:
    if record.failure is None:
        return record.position
    return f"raised {record.failure.type_name}: {record.failure.message.partition(chr(10))[0]}"


def _table(found: Mapping[int, Record], absent: Sequence[str]) -> str:
    """Ranks that do the same in one row: ranks, what they do, line.

    The same as below a verdict of `labkit.run` (doctor/position.py), but for what a record does not
    keep: with what a rank waits.

    absent: by rank, what is said of one that has left no record.
    """
    rows = [
        _row(found[rank]) if rank in found else (without, "") for rank, without in enumerate(absent)
    ]
    return grouped_table(rows)


def _row(record: Record) -> tuple[str, str]:
    """Return what the rank did, and where."""
    place = f" ({record.place})"
    if not record.position.endswith(place):
        return record.position, ""
    return record.position.removesuffix(place), record.place


def record_of(spec: HostedSpec, supervisor: Supervisor, started_s: float, order: int = 0) -> Record:
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
        host=spec.rendezvous.places[spec.rank].host,
        stage=rank.stage,
        position=position(view),
        place=place(view),
        clock_s=_clock_s(spec),
        timeline=timeline,
        attempt=spec.rendezvous.attempt,
        order=order,
        stack=supervisor.evidence.stacks[0].text,
        failure=failure(rank, timeline),
        seconds=time.monotonic() - started_s,
        ready_seconds=max(supervisor.ready_s - started_s, 0.0),
        log=rank.output.log,
        num_hosts=len({place.host_number for place in spec.rendezvous.places}),
    )
    timeline.start_s, timeline.end_s = record.clock_s, time.monotonic()
    if isinstance(report, Returned):
        timeline.start_s, timeline.end_s = report.start_s, report.end_s
        record.memory = (report.memory.start_bytes, report.memory.peak_bytes)
        record.socket_bytes = report.socket_bytes
        dumped = spec.directory.of_rank(spec.rank, "value").read_bytes()
        record.value_kind, record.value = encode_value(dumped)
    return record


def _clock_s(spec: HostedSpec) -> float:
    """The clock of this host when all ranks began; 0 where that never happened."""
    for rank in spec.environment.local_ranks:
        path = spec.directory.of_rank(rank, "clock")
        if path.exists() and (text := path.read_text()):
            return float(text)
    return 0.0

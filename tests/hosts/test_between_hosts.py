"""The parts of a job on several hosts, without the hosts: rendezvous, board, ports, records."""

import dataclasses
import json
import os
import signal
import socket
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from labkit import Run, RunError, run
from labkit.doctor.verdict import Stage
from labkit.hosts import attempts, attend, post_mortem, rank_record, records, rendezvous
from labkit.hosts.attempts import RunVerdict, attempt_message, claim, objection
from labkit.hosts.board import open_store
from labkit.hosts.environment import Environment, name_of_job
from labkit.hosts.hosted_rank import NO_PROCESS, SILENT, LivenessPort, probe
from labkit.launch.rank import Raised


def environment(rank, world_size, port):
    """Rank `rank`, alone on its host."""
    return Environment(rank, world_size, 0, 1, rank, "127.0.0.1", port, "none", True)


@pytest.fixture(scope="module")
def store():
    """A store like that of torchrun's agent, which outlives attempts."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def all_answer(port, next_attempts, order, timeout_s=60, objections=()):
    """Return each rank's answer from a rendezvous that the ranks enter in this order."""
    heard = {}

    def answer(rank):
        try:
            its = environment(rank, len(next_attempts), port)
            heard[rank], _ = rendezvous.join(
                its,
                open_store(its, timeout_s),
                liveness_port=1000 + rank,
                folder=f"folder-{rank}",
                next_attempt=next_attempts[rank],
                objection=objections[rank] if objections else "",
                num_gpus=0,
                timeout_s=timeout_s,
            )
        except RuntimeError as error:
            heard[rank] = error

    threads = []
    for rank in order:
        threads.append(threading.Thread(target=answer, args=(rank,)))
        threads[-1].start()
        time.sleep(0.15)
    for thread in threads:
        thread.join()
    return heard


def test_all_ranks_hear_the_same_in_every_attempt_on_one_store(store):
    names = set()
    for next_attempts, order in (([0, 0, 0], [0, 1, 2]), ([1, 0, 1], [2, 1, 0]), ([2, 2], [1, 0])):
        heard = all_answer(store.port, next_attempts, order)
        assert len({each.name for each in heard.values()}) == 1, "they met under different names"
        joined = heard[0]
        assert joined.attempt == max(next_attempts)
        assert [place.liveness_port for place in joined.places] == [
            1000 + rank for rank in range(len(order))
        ]
        assert heard[1].folder(environment(1, len(order), store.port)) == "folder-1"
        assert not joined.has_gpus()
        names.add(joined.name)
    assert len(names) == 3


def test_ranks_that_do_not_come_are_named(store):
    heard = all_answer(store.port, [0, 0, 0], [0, 2], timeout_s=3)
    assert "ranks [1] have not come" in str(heard[0])
    assert "did not all start" in str(heard[2])


def test_a_rank_that_torchrun_did_not_start_gets_an_error():
    with pytest.raises(RuntimeError, match=r"LOCAL_RANK.* not set: torchrun sets these"):
        Environment.read({"RANK": "0", "WORLD_SIZE": "1"})


def test_a_rank_whose_run_nobody_can_confirm_says_so(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    spec = SimpleNamespace(rank=1, rendezvous=rendezvous_of(2), environment=environment(1, 2, 0))
    out = tmp_path / "out"
    rank_record.Record.read(folder / "attempt-0" / "rank-1.json").write(out / "attempt-0")
    attend.unconfirmed("nobody answers", spec, out / "attempt-0")
    assert (
        "rank 1, on host host-1, has finished, but it is not confirmed" in capsys.readouterr().err
    )
    with pytest.raises(RunError, match="nobody answers"):
        Run.load(out)
    assert Run.load(out, partial=True).values[1] == {"rank": 1}


def test_a_host_has_one_verdict_and_the_first_one_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    spec = SimpleNamespace(rank=1, rendezvous=rendezvous_of(2), environment=environment(1, 2, 0))
    for text in ("the first", "the second"):
        attend.publish_verdict(RunVerdict(text), spec, tmp_path)
    assert RunVerdict.find([tmp_path]).text == "the first"
    assert "the second" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["verdict-of-host-1.json"]


def rendezvous_of(num_ranks):
    """A rendezvous of ranks with a host each."""
    return rendezvous.Rendezvous(
        "name",
        [
            rendezvous.Place(rank, rank, f"host-{rank}", "127.0.0.1", 1, "", 0, "", 0, "")
            for rank in range(num_ranks)
        ],
    )


@pytest.mark.parametrize(
    ("is_open", "words", "is_consequence"),
    [(True, "", True), (False, "Watchdog caught collective operation timeout", True)]
    + [(False, "terminate called", False)],
)
def test_an_abort_while_a_rank_waited_is_not_the_cause(folder, is_open, words, is_consequence):
    timeline = rank_record.Record.read(folder / "attempt-0" / "rank-1.json").timeline
    last = dataclasses.replace(timeline.operations[-1], **({"done_s": None} if is_open else {}))
    timeline.operations[-1] = last
    process = SimpleNamespace(process=SimpleNamespace(exitcode=-signal.SIGABRT))
    output = SimpleNamespace(log=words)
    rank = SimpleNamespace(report=None, stage=Stage.DIED, process=process, output=output)
    failure = post_mortem.failure(rank, timeline)
    assert (failure.exit_code, failure.is_consequence) == (-signal.SIGABRT, is_consequence)


@pytest.mark.parametrize("is_consequence", [True, False])
@pytest.mark.parametrize("has_failed_operations", [True, False])
def test_whether_an_error_is_the_cause_is_decided_by_the_error_and_not_by_the_journal(
    folder, is_consequence, has_failed_operations
):
    ranks = [rank_record.Record.read(folder / "attempt-0" / f"rank-{rank}.json") for rank in (0, 1)]
    (operation,) = ranks[0].timeline.operations
    ranks[0].timeline.operations[0] = dataclasses.replace(operation, failed=has_failed_operations)
    report = Raised("KeyError", "'loss'", "its traceback", None, None, 0.0, is_consequence)
    rank = SimpleNamespace(report=report, stage=Stage.RAISED)
    ranks[0].stage = Stage.RAISED
    ranks[0].failure = post_mortem.failure(rank, ranks[0].timeline)
    places = [rendezvous.Place(each, each, "left", "", 0, "", 0, "", 0, "") for each in (0, 1)]
    verdict = post_mortem.of(rendezvous.Rendezvous("name", places), dict(enumerate(ranks)), {})
    if is_consequence:
        assert (verdict.kind, verdict.rank) == ("RunError", -1)
    else:
        assert (verdict.kind, verdict.rank, verdict.traceback) == ("RankError", 0, "its traceback")


def test_a_folder_is_for_one_job(tmp_path, store):
    out = tmp_path / "first"
    assert objection(out, "1234") == ""
    claim(out, "1234")
    (out / "attempt-0").mkdir()
    assert objection(out, "1234") == "", "a restart goes on in it"
    assert "of job 1234, and this is job 1235: name another folder" in objection(out, "1235")
    (out / "job").unlink()
    assert "of no job of torchrun" in objection(out, "1234")


def test_who_cannot_give_an_id_learns_how_to(tmp_path):
    """torchrun --standalone makes up an id at each start."""
    claim(tmp_path, "1234")
    (tmp_path / "attempt-0").mkdir()
    assert "--standalone" not in objection(tmp_path, "1235")
    assert "give --nnodes=1 --rdzv-id=NAME" in objection(tmp_path, str(uuid.uuid4()))


def test_an_attempt_after_a_good_one_is_reported_with_the_way_to_start_over(folder):
    assert attempt_message(0, folder, "saved", "first") == ""
    text = attempt_message(1, folder, "saved", "first")
    assert text.startswith("labkit: attempt 1 of job first, in saved\nlabkit: attempt 0 was compl")
    assert text.endswith("use another --rdzv-id and --out, or delete saved")
    assert len(attempt_message(2, folder, "saved", "first").splitlines()) == 1, (
        "there is no attempt 1 here"
    )
    RunVerdict("it failed").write(folder / "attempt-0", 0)
    assert (
        attempt_message(1, folder, "saved", "first") == "labkit: attempt 1 of job first, in saved"
    )


@pytest.mark.parametrize("change", ["missing", "damaged", "raised"])
def test_an_attempt_that_was_not_good_is_not_called_so(folder, change):
    path = folder / "attempt-0" / "rank-1.json"
    record = rank_record.Record.read(path)
    if change == "raised":
        dataclasses.replace(record, stage=Stage.RAISED).write(path.parent)
    else:
        path.unlink() if change == "missing" else path.write_text("{")
    assert len(attempt_message(1, folder, "saved", "first").splitlines()) == 1


@pytest.mark.parametrize(
    ("rank", "missing", "is_left"),
    [(1, [], False), (1, [1], True), (0, [], True), (-1, [], True)],
    ids=["raised here", "gone", "raised elsewhere", "a hang"],
)
def test_the_verdict_is_torchruns_error_where_no_rank_of_this_host_left_its_own(
    tmp_path, monkeypatch, rank, missing, is_left
):
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    spec = SimpleNamespace(rank=1, rendezvous=rendezvous_of(2), environment=environment(1, 2, 0))
    attend.publish_verdict(RunVerdict("why\nand where", rank=rank, missing=missing), spec, tmp_path)
    assert file.exists() == is_left
    if is_left:
        assert json.loads(file.read_text())["message"]["extraInfo"]["py_callstack"] == "why"


def test_a_job_without_an_id_keeps_its_name_for_as_long_as_its_store(store):
    name = name_of_job(environment(0, 2, store.port), store)
    assert name.startswith("none (no --rdzv-id)")
    assert name_of_job(environment(1, 2, store.port), store) == name


def test_all_ranks_hear_whose_folder_is_not_for_this_job(store):
    heard = all_answer(store.port, [0, 0], [0, 1], objections=["", "the folder is taken"])
    for rank in range(2):
        assert isinstance(heard[rank], RuntimeError)
        assert "the folder is taken" in str(heard[rank])


def test_a_port_answers_while_its_process_lives():
    liveness_port = LivenessPort()
    for _ in range(100):  # more than one port queues
        assert probe("127.0.0.1", liveness_port.port, 60.0) is None
        liveness_port.answer()
    if socket.has_dualstack_ipv6():
        assert probe("::1", liveness_port.port, 60.0) is None
    liveness_port.close()
    assert probe("127.0.0.1", liveness_port.port, 60.0) == "has no such process any more"


@pytest.fixture
def waited_for(tmp_path, monkeypatch):
    """wait_for on a clock that only waiting moves: what it finds, and the seconds that it takes."""

    def waited_for(places, answers, meanwhile=lambda: None):
        """answers: what a probe of a rank's port says, where it is not open."""
        clock = SimpleNamespace(s=0.0)

        def probe(address, rank, wait_s):
            answer = answers.get(rank)
            clock.s += wait_s if answer == SILENT else 0.0
            meanwhile()
            return answer

        def sleep(seconds):
            clock.s += seconds

        fake = SimpleNamespace(monotonic=lambda: clock.s, sleep=sleep)
        monkeypatch.setattr(records, "time", fake)
        monkeypatch.setattr("labkit.hosts.hosted_rank.probe", probe)
        joined = rendezvous.Rendezvous(
            "name",
            [
                rendezvous.Place(rank, host, f"host-{host}", "", rank, "", 0, "", 0, "")
                for rank, host in enumerate(places)
            ],
        )
        board = SimpleNamespace(read=lambda key, parse, within_s: None)
        liveness_port = SimpleNamespace(answer=lambda: None)
        found, gone = records.wait_for(joined, board, tmp_path, liveness_port)
        return list(found), gone, clock.s

    return waited_for


def test_a_silent_host_is_waited_for_once_and_not_for_each_of_its_ranks(waited_for):
    _, gone, seconds = waited_for([1] * 16, dict.fromkeys(range(16), SILENT))
    assert gone == dict.fromkeys(range(16), SILENT)
    assert seconds < 3


def test_many_silent_hosts_do_not_hold_the_verdict_up(folder, tmp_path, waited_for):
    record = rank_record.Record.read(folder / "attempt-0" / "rank-1.json")
    last = dataclasses.replace(record, rank=50, world_size=51)
    found, gone, seconds = waited_for(
        range(51), dict.fromkeys(range(50), SILENT), lambda: last.write(tmp_path)
    )
    assert seconds <= 10, "the other ranks of this host wait 15 s for its verdict"
    assert len(gone) == 4
    assert found == [50], "a record of this host came meanwhile, and was not looked for"


def test_a_host_that_answers_at_one_port_is_not_gone(waited_for):
    _, gone, _ = waited_for([1, 1, 1], {0: NO_PROCESS, 1: SILENT})
    assert gone == {0: NO_PROCESS, 1: SILENT}


def returns_its_rank(world):
    world.barrier()
    return {"rank": world.rank}


@pytest.fixture
def folder(tmp_path):
    return run(returns_its_rank, 2).save(tmp_path / "saved")


def test_a_record_travels_as_one_note(folder):
    record = rank_record.Record.read(folder / "attempt-0" / "rank-1.json")
    record.log = "two\nlines ü\n"
    assert records.unpacked(records.packed(record)) == record


@pytest.mark.parametrize("rank", ["../../1", -1, 1.0])
def test_a_record_from_the_network_names_no_file_of_its_own(folder, rank):
    record = rank_record.Record.read(folder / "attempt-0" / "rank-1.json")
    with pytest.raises(ValueError, match="is no rank|rank: .* is no int"):
        records.unpacked(records.packed(dataclasses.replace(record, rank=rank)))


@pytest.mark.parametrize("damage", [lambda note: note[:-9], lambda note: note[:5] + note[9:]])
def test_a_damaged_note_is_no_record(folder, damage):
    record = rank_record.Record.read(folder / "attempt-0" / "rank-1.json")
    with pytest.raises(ValueError, match="no note|damaged"):
        records.unpacked(damage(records.packed(record)))
    with pytest.raises(ValueError, match="no note"):
        records.unpacked(b"short")


def test_a_record_above_the_bound_leaves_its_value_behind_and_then_its_timeline(folder):
    record = rank_record.Record.read(folder / "attempt-0" / "rank-1.json")
    record.value, record.log = os.urandom(20_000), "and so on\n" * 100_000
    small = records.unpacked(records.bounded(record, 10_000))
    assert (small.value, small.value_kind) == (b"", records.LEFT_BEHIND)
    assert (small.timeline, small.log, small.is_cut) == (record.timeline, record.log, False)
    record.log = os.urandom(20_000).hex()
    smaller = records.unpacked(records.bounded(record, 10_000))
    assert (smaller.timeline.operations, smaller.log, smaller.is_cut) == ([], "", True)


def test_a_value_that_was_too_large_to_travel_is_found_in_its_hosts_folder(folder, tmp_path):
    path = folder / "attempt-0" / "rank-1.json"
    left = dataclasses.replace(
        rank_record.Record.read(path), value=b"", value_kind=records.LEFT_BEHIND
    )
    left.write(attempts.folder_of(tmp_path / "first", 0))
    (path.parent / "rank-0.json").rename(tmp_path / "first" / "attempt-0" / "rank-0.json")
    for kind in ("value", "log"):
        (path.parent / f"rank-0.{kind}").rename(tmp_path / f"first/attempt-0/rank-0.{kind}")
    with pytest.raises(ValueError, match=r"rank 1 .*too large to travel.*Run.load\("):
        Run.load(tmp_path / "first")
    assert Run.load(tmp_path / "first", partial=True).values == [{"rank": 0}, None]
    assert [v["rank"] for v in Run.load(tmp_path / "first", folder).values] == [0, 1]

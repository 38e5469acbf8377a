"""Every way for a run to fail ends in an error that names the rank, and leaves nothing behind."""

import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from multiprocessing import forkserver

import pytest
import torch

from labkit import Deadlock, RankError, RunTimeout, run
from labkit.collectives import ring_all_reduce
from labkit.launch import launch, supervise
from labkit.launch.listen import StallWatch
from labkit.pipeline import Pipeline, gpipe, plan
from labkit.zero import FullyShardedModule
from tests.forked_programs import script
from tests.processes import are_gone_within


def raise_on(world, culprit):
    if world.rank == culprit:
        raise ZeroDivisionError("the learning rate schedule divides by zero steps")
    world.barrier()


@pytest.fixture
def with_its_consequences(monkeypatch, timeout_when_still):
    """`with with_its_consequences(): run(...)`: a failure ends the run once other ranks wait."""
    monkeypatch.setattr(supervise, "_GRACE_S", 600)
    return timeout_when_still


def process_ids_of_ranks():
    """Processes in sessions of their own whose parent is our fork server: living ranks."""
    from multiprocessing.forkserver import _forkserver

    server = _forkserver._forkserver_pid
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, parent, state in rows if int(parent) == server and state[0] != "Z"]


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = process_ids_of_ranks()  # a server of kernels, where a notebook was tested before
    yield
    assert process_ids_of_ranks() == before


@pytest.fixture(autouse=True, scope="module")
def the_next_run_works():
    run(lambda world: None, 2)  # the first one starts the fork server, which may take longer
    yield
    values = run(lambda world: world.all_reduce(torch.tensor(world.rank)).item(), 3).values
    assert values == [3, 3, 3]


@pytest.mark.parametrize("culprit", [0, 2])
def test_an_exception_names_its_rank_and_line(culprit):
    with pytest.raises(RankError) as caught:
        run(raise_on, 3, (culprit,))
    error = caught.value
    assert error.rank == culprit
    assert error.exception_type == "ZeroDivisionError"
    assert isinstance(error.exception, ZeroDivisionError)
    assert "raise ZeroDivisionError(" in error.traceback, "the source line is missing"
    assert error.site.function == "raise_on"
    assert str(error).startswith(f"rank {culprit} raised ZeroDivisionError at test_failing_runs.py")


def test_what_follows_on_other_ranks_is_a_consequence(with_its_consequences):
    with with_its_consequences(), pytest.raises(RankError) as caught:
        run(raise_on, 3, (1,))
    consequences = caught.value.consequences
    assert sorted(consequences) == [0, 2]
    assert all("waits in barrier #1" in text for text in consequences.values())


def test_consequences_that_are_the_same_are_reported_together(with_its_consequences):
    with with_its_consequences(), pytest.raises(RankError) as caught:
        run(raise_on, 3, (1,))
    reported = str(caught.value).partition("Later, on the other ranks:\n")[2]
    assert re.fullmatch(r"  ranks 0 and 2 wait in barrier #1 \(\S+, line \d+\)", reported)


WAYS_TO_BE_BUSY = {
    "blocking": lambda world: world.all_reduce(torch.ones(10**6)),
    "ring": lambda world: ring_all_reduce(torch.ones(10**6), world),
    "in flight": lambda world: [
        pending.wait()
        for pending in [world.all_reduce(torch.ones(10**5), wait=False) for _ in range(6)]
    ],
    "outside the Group API": lambda world: torch.distributed.all_reduce(torch.ones(10**6)),
}


@pytest.mark.parametrize(
    ("busy", "death"), [("blocking", "exit"), *((busy, "kill") for busy in WAYS_TO_BE_BUSY)]
)
def test_a_death_is_blamed_and_not_the_broken_connections_that_follow(busy, death):
    def dies_among_busy_ranks(world):
        for step in range(50):
            if world.rank == 1 and step == 3:
                os._exit(5) if death == "exit" else os.kill(os.getpid(), signal.SIGKILL)
            WAYS_TO_BE_BUSY[busy](world)

    with pytest.raises(RankError, match="rank 1 died"):
        run(dies_among_busy_ranks, 3)


def test_an_exception_that_only_the_rank_knows_is_still_reported():
    def raises_its_own(world):
        import sys as modules
        import types

        module = modules.modules["only_here"] = types.ModuleType("only_here")
        exec("class Odd(Exception): pass", module.__dict__)
        raise module.Odd("seen nowhere else")

    with pytest.raises(RankError, match="raised Odd.*seen nowhere else"):
        run(raises_its_own, 1)


def test_an_exception_that_cannot_be_shown_is_still_reported():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def raises_it(world):
        raise Unspeakable

    with pytest.raises(RankError, match="raised Unspeakable.*its __str__ raises RuntimeError"):
        run(raises_it, 1)


def test_a_folder_for_temporary_files_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(RuntimeError, match="TMPDIR"):
        run(print, 1)


def test_a_folder_for_temporary_files_with_too_long_a_name_is_reported_with_its_cure(
    monkeypatch, tmp_path
):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", None)
    monkeypatch.setattr(forkserver, "ensure_running", forkserver.ForkServer().ensure_running)
    with pytest.raises(OSError, match="Set TMPDIR to another, such as /tmp"):
        run(lambda world: None, 2)


HAMMERED = """
import os, signal, threading, time, labkit
labkit.run(lambda world: None, 2)
def hammer(delay):
    time.sleep(delay)
    for _ in range(6):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.003)
for delay in (0.0, 0.03, 0.06, 0.3):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    presses = threading.Thread(target=hammer, args=(delay,))
    try:
        presses.start()  # its first press can come before it returns
        labkit.run(lambda world: time.sleep(30), 2, timeout=600)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    presses.join()
signal.signal(signal.SIGINT, signal.default_int_handler)
print(labkit.run(lambda world: world.rank, 2).values)
"""


def test_a_hammered_stop_key_leaves_nothing_behind(tmp_path):
    path, folder = tmp_path / "hammered.py", tmp_path / "tmp"
    path.write_text(HAMMERED)
    folder.mkdir()
    assert script(path, TMPDIR=str(folder)).output(90).strip() == "[0, 1]"
    assert [path.name for path in folder.glob("labkit-run-*")] == []


PRESSED_WITH_THE_FOLDER = """
import os, signal, labkit
from labkit.comm import owned_folder
make = owned_folder.make
def made(*where):
    folder = make(*where)
    os.kill(os.getpid(), signal.SIGINT)
    return folder
owned_folder.make = made
for start in (lambda: labkit.run(lambda world: None, 2), lambda: labkit.Session(2)):
    try:
        start()
    except KeyboardInterrupt as error:
        del error
        print("stopped")
print(os.listdir(os.environ["TMPDIR"]))
"""


def test_a_stop_key_that_comes_with_the_folder_of_a_run_leaves_none(tmp_path):
    path, folder = tmp_path / "pressed.py", tmp_path / "tmp"
    path.write_text(PRESSED_WITH_THE_FOLDER)
    folder.mkdir()
    said = script(path, TMPDIR=str(folder)).output(90).split("\n")
    assert said[:2] == ["stopped", "stopped"]
    assert "labkit-run" not in said[2]


def test_a_signal_without_a_name_is_reported_by_number():
    def ends_by_a_realtime_signal(world):
        os.kill(os.getpid(), 36)
        time.sleep(10)

    with pytest.raises(RankError, match="(?i)signal|SIGRT"):
        run(ends_by_a_realtime_signal, 1)


def test_what_a_rank_has_started_ends_with_it():
    def starts_a_child(world, fails):
        child = subprocess.Popen(["sleep", "77"])
        print("child", child.pid)
        if fails:
            raise ValueError("failed")

    for fails in (False, True):
        try:
            log = run(starts_a_child, 1, (fails,)).logs[0]
        except RankError as error:
            log = error.logs[0]
        child = int(log.split()[-1])
        assert are_gone_within([child], 60)


def test_a_killed_rank_is_named_with_its_signal():
    def killed(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.all_reduce(torch.ones(1))

    with pytest.raises(RankError, match="rank 1 died: .*SIGKILL") as caught:
        run(killed, 4)
    assert caught.value.rank == 1
    assert caught.value.exit_code == -signal.SIGKILL


def test_an_exit_past_the_launcher_is_named_with_its_code():
    def leaves(world):
        if world.rank == 2:
            print("so long")
            os._exit(7)
        world.barrier()

    with pytest.raises(RankError, match="rank 2 died: .*code 7") as caught:
        run(leaves, 3)
    assert "so long" in caught.value.traceback, "its last words are missing"


def test_an_abort_in_cpp_shows_its_last_words():
    def aborts(world):
        if world.rank == 1:
            os.write(2, b"terminate called after throwing an instance of 'gloo'\n")
            os.abort()
        world.barrier()

    with pytest.raises(RankError, match="SIGABRT") as caught:
        run(aborts, 2)
    assert "terminate called" in str(caught.value)
    assert "in aborts" in str(caught.value), "the Python stack is missing"


def test_a_value_that_cannot_be_sent_back_is_an_error_of_its_rank():
    def returns_a_generator(world):
        return (i for i in range(3)) if world.rank == 1 else 0

    with pytest.raises(RankError, match="rank 1 returned a generator") as caught:
        run(returns_a_generator, 2)
    assert caught.value.exception_type == "TypeError"


def test_arguments_that_cannot_travel_are_refused_before_anything_starts():
    with pytest.raises(TypeError, match="cannot travel to the ranks"):
        run(lambda world, lock: None, 2, (threading.Lock(),))


def test_a_rank_that_returns_early_is_found_before_the_timeout():
    def leaves_early(world):
        world.all_reduce(torch.ones(1))
        if world.rank != 1:
            world.all_reduce(torch.ones(1))

    with pytest.raises(
        Deadlock, match=r"rank 1 returned after all_reduce #1 \(.*\), without calling it"
    ):
        run(leaves_early, 4, timeout=600)


def test_a_message_that_a_returned_rank_never_sent_is_found_before_the_timeout():
    def waits_in_vain(world):
        if world.rank == 0:
            world.recv(torch.empty(1), src=1)

    with pytest.raises(Deadlock, match="rank 0 waits in recv #1 from rank 1"):
        run(waits_in_vain, 2, timeout=600)


def test_a_call_that_one_rank_makes_alone_is_reported_by_its_name_and_not_by_its_messages():
    def evaluates_alone(world, alone):
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        model = FullyShardedModule(layers, world)
        stage = {world.rank: torch.nn.Linear(3, 3)}
        loss = torch.nn.functional.mse_loss
        pipeline = Pipeline(plan(gpipe, 2, 2), stage, loss, world)
        pipeline.step(torch.ones(2, 3), torch.ones(2, 3))
        if world.rank == 0 and alone == "model":
            model(torch.ones(2, 4))
        if world.rank == 0 and alone == "pipeline":
            pipeline.step(torch.ones(2, 3), torch.ones(2, 3))

    for alone, reported in (
        ("model", r"in model\(torch.ones\(2, 4\)\) \(weights of 0; .*, without calling it"),
        ("pipeline", r"in pipeline.step\(.*\) \(gradient of the input of stage 1, microbatch"),
    ):
        with pytest.raises(Deadlock, match=reported) as caught:
            run(evaluates_alone, 2, args=(alone,), timeout=600)
        assert "neighbour" not in str(caught.value) and "every rank" in str(caught.value)


def test_asking_ranks_where_they_are_does_them_no_harm(monkeypatch, tmp_path):
    """They are asked forty times here, while they compute, wait, and change threads."""

    def busy(world, enough):
        helper = threading.Thread(target=sum, args=(range(10**7),))
        helper.start()
        go_on = torch.ones(1)
        while go_on.item():
            deep(30)
            time.sleep(0.001)
            world.all_reduce(torch.ones(100))
            go_on = world.broadcast(torch.tensor(float(not enough.exists())))
        helper.join()

    def deep(depth):
        return deep(depth - 1) if depth else sum(range(500))

    asked, enough = [], tmp_path / "enough"

    def look(watch):
        if watch._supervisor.ready_s:
            asked.append(watch._supervisor.evidence.examine(patience_s=2))
        if len(asked) == 40:
            enough.touch()

    monkeypatch.setattr(StallWatch, "check", look)
    monkeypatch.setattr(StallWatch, "seconds_until_check", 0.01)
    run(busy, 2, (enough,))
    assert len(asked) >= 40


def test_a_talkative_deadlock_is_found_too():
    def waits_and_prints(world):
        if world.rank == 0:
            return
        threading.Thread(
            target=lambda: [(print("still here"), time.sleep(0.05)) for _ in range(10**5)],
            daemon=True,
        ).start()
        world.recv(torch.empty(1), src=0)

    with pytest.raises(Deadlock, match="rank 1 waits in recv #1 from rank 0"):
        run(waits_and_prints, 2, timeout=600)


def test_only_a_rank_that_is_needed_is_missed():
    def the_root_is_late(world):
        if world.rank == 0:
            time.sleep(1)
            world.gather(torch.ones(1))
        if world.rank == 1:
            world.gather(torch.ones(1))

    with pytest.raises(Deadlock, match="rank 0 waits in gather #1"):
        run(the_root_is_late, 3, timeout=600)


def test_a_deadlock_is_left_standing_for_who_wants_to_look_at_it(monkeypatch, timeout_when_still):
    """Until the doctor has looked eight times; two are enough for a verdict."""

    def receives(world):
        world.recv(torch.empty(1), 1 - world.rank)

    def count(watch):
        looks.append(watch.seconds_until_check == 0)
        return look(watch)

    look, looks = StallWatch.check, []
    monkeypatch.setattr(StallWatch, "check", count)
    monkeypatch.setattr(StallWatch, "_proof", lambda watch: None)
    with (
        timeout_when_still(lambda: sum(looks) >= 8),
        pytest.raises(RunTimeout, match="ranks 0 and 1 wait for each other"),
    ):
        launch(receives, 2, [()], timeout=600)


def test_a_timeout_says_where_each_rank_is(timeout_when_still):
    def one_rank_never_comes(world):
        if world.rank == 2:
            time.sleep(600)
        world.all_reduce(torch.ones(1))

    with timeout_when_still(), pytest.raises(RunTimeout) as caught:
        run(one_rank_never_comes, 3, timeout=600)
    text = str(caught.value)
    assert "ranks 0 and 1 wait in all_reduce #1" in text
    assert "for rank 2, which sleeps or blocks before any operation" in text
    assert "one_rank_never_comes" in caught.value.stacks[2]


def test_a_timeout_before_the_ranks_have_started_says_so(tmp_path):
    class SlowToUnpickle:
        def __reduce__(self):
            return time.sleep, (600,)

    with pytest.raises(RunTimeout, match="ranks 0 and 1 were still starting"):
        run(lambda world, x: None, 2, (SlowToUnpickle(),), timeout=1)


def test_a_failed_runs_timeline_can_be_drawn(timeout_when_still):
    from labkit import viz

    def waits(world):
        world.all_reduce(torch.ones(1))
        if world.rank:
            time.sleep(600)
        world.recv(torch.empty(1), src=1 - world.rank)

    with timeout_when_still(), pytest.raises(RunTimeout) as caught:
        run(waits, 2, timeout=600)
    for timeline in caught.value.timeline:
        (first, *_) = timeline.operations
        assert 0 == timeline.start_s < first.posted_s < first.done_s < timeline.end_s
    assert viz.timeline(caught.value).png().startswith(b"\x89PNG")


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt()"])
def test_exceptions_that_are_not_errors_end_the_run_too(error):
    with pytest.raises(RankError, match=error.partition("(")[0]):
        run(lambda world: exec(f"raise {error}"), 2)


@pytest.mark.parametrize("code", ["", "0", "None"])
def test_a_program_that_ends_itself_as_it_should_has_returned(code):
    assert run(lambda world: exec(f"raise SystemExit({code})"), 2).values == [None, None]


def test_nobody_else_reads_how_a_rank_ended():
    """multiprocessing asks all processes that it knows, in any thread that starts one."""
    before, seen, is_over = set(multiprocessing.active_children()), set(), threading.Event()

    def asks():
        while not is_over.wait(0.05):
            seen.update(multiprocessing.active_children())

    thread = threading.Thread(target=asks)
    thread.start()
    run(lambda world: time.sleep(0.5), 2, timeout=600)
    is_over.set()
    thread.join()
    assert seen <= before


def test_a_rank_that_holds_pythons_lock_is_ended():
    def spins_in_c(world):
        if world.rank == 0:
            sum(range(10**12))

    with pytest.raises(RunTimeout):
        run(spins_in_c, 2, timeout=1)

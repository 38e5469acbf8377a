"""Two hosts, for real but for the hardware: network namespaces with a cable between them."""

import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from namespaces import TwoHosts, why_not

from labkit import Deadlock, Mismatch, RankError, Run, calc
from labkit.hosts.environment import address_towards, interface_of

PROGRAM = Path(__file__).parent / "program.py"
REQUIRE = "LABKIT_REQUIRE_TWO_HOSTS"  # set by .ci/run: there a skip is a failure


class Job:
    """torchrun on both hosts; what they print, as it comes."""

    def __init__(self, hosts, folder, options, function, *words, share_a_folder=False):
        """words: of the launcher, then `--` and those of the program."""
        self.hosts, self.folder = hosts, folder
        self.lines = {"left": [], "right": []}
        self.agents, self.readers = {}, []
        for host in self.lines:
            out = "shared" if share_a_folder else host
            program = (f"{PROGRAM}:{function}", "--out", folder / out, *words)
            agent = hosts.torchrun(
                host, options, *program, TMPDIR=str(folder), CHECKPOINTS=str(folder)
            )
            self.agents[host] = agent
            reader = threading.Thread(target=self.lines[host].extend, args=(agent.stdout,))
            reader.start()
            self.readers.append(reader)

    def wait_for(self, path):
        deadline = time.monotonic() + 200
        while not path.exists():
            assert time.monotonic() < deadline, self.output("left")
            time.sleep(0.02)

    def end(self, host="left"):
        """The exit code of a host's torchrun, once it is over."""
        return self.agents[host].wait(timeout=200)

    def output(self, host="left"):
        return "".join(self.lines[host])


@pytest.fixture(scope="session")
def two_hosts_can_be_made():
    """Tried once, and only where a test needs them: collecting makes no namespaces."""
    if reason := why_not():
        give_up = pytest.fail if os.environ.get(REQUIRE) == "1" else pytest.skip
        give_up(f"no two hosts here: {reason}")


@pytest.fixture
def hosts(two_hosts_can_be_made):
    with TwoHosts() as both:
        yield both
        both.kill("left")
        both.kill("right")


@pytest.fixture
def start(hosts, tmp_path):
    jobs = []

    def started(options, function, *words, **more):
        jobs.append(Job(hosts, tmp_path, options, function, *words, **more))
        return jobs[-1]

    yield started
    for host in ("left", "right"):
        hosts.kill(host)
    for job in jobs:
        for agent in job.agents.values():
            agent.wait(timeout=600)
        for reader in job.readers:
            reader.join()


def test_an_all_reduce_over_a_slow_cable_sends_what_the_calculator_says_and_takes_no_less(start):
    """How much longer it takes is the machine's, and so is only printed."""
    job = start("--nnodes=2 --nproc-per-node=1", "timed_on_slow_links", "--", "--fast")
    assert (job.end("left"), job.end("right")) == (0, 0), job.output("left")
    assert "[rank 0] hello from left\n" in job.output("left")
    assert "[rank 1] hello from right\n" in job.output("right")

    run = Run.load(job.folder / "left")  # which has all of it, though no folder is shared
    assert [value["host"] for value in run.values] == ["left", "right"]
    assert run.values[1]["ranks"].tolist() == [0, 1]
    assert run.values[1]["words"] == ["--fast"]
    assert run.logs == ["hello from left\n", "hello from right\n"]
    for one, other in (run.timeline, run.timeline[::-1]):  # laid together, no clock is ahead
        gathers, barrier, *_ = other.operations
        (thinking,) = one.regions
        # Each thinks 0.2 s; an offset is known to half a message there and back.
        assert gathers.posted_s < thinking.end_s and thinking.start_s < barrier.done_s

    nbytes = max(op.payload_bytes for op in run.timeline[0].operations)
    for bits_per_second, seconds in run.values[0]["seconds"].items():
        predicted = calc.collective("all_reduce", "ring", 2, nbytes).seconds(
            1e-4, 8 / bits_per_second
        )
        print(f"{bits_per_second / 1e6:g} Mbit/s: predicted {predicted:.3f} s, took {seconds:.3f}")
        # The first 32 KB may leave at once: 3% of its bytes.
        assert seconds > 0.95 * predicted, f"at {bits_per_second / 1e6} Mbit/s"
        # Headers are 66 of 1514 bytes of a packet: 4.6% that the formula leaves out.
        sent = run.values[0]["sent_bytes"][bits_per_second]
        assert nbytes < sent < 1.15 * nbytes


def test_ranks_that_differ_across_hosts_are_found_in_the_end(start):
    job = start("--nnodes=2 --nproc-per-node=1", "differ_across_hosts", share_a_folder=True)
    assert job.end("left") != 0
    assert job.end("right") != 0
    words = (
        "labkit: in all_reduce #1, rank 0 reduces by sum (program.py, line {0}), and rank 1 "
        "reduces by max"
    )
    line = PROGRAM.read_text().splitlines().index("    return world.all_reduce(x, op=op)") + 1
    for host in ("left", "right"):
        assert job.output(host).count(words.format(line)) == 1, job.output(host)
    with pytest.raises(Mismatch, match="rank 1 reduces by max"):
        Run.load(job.folder / "shared")


def test_ranks_that_wait_for_another_host_in_vain_are_found_before_their_timeout(start):
    options = "--nnodes=2 --nproc-per-node=2"
    job = start(options, "leave_the_other_host_waiting", "--stall", "1")
    assert job.end("left") != 0
    assert job.end("right") != 0
    line = 1 + [each.strip() for each in PROGRAM.read_text().splitlines()].index(
        "world.barrier()  # in vain"
    )
    words = (
        f"labkit: ranks 0 and 1 wait in barrier #2 (program.py, line {line}); ranks 2 and 3 "
        "returned after all_reduce #1"
    )
    for host in ("left", "right"):
        assert job.output(host).count(words) == 1, job.output(host)
        with pytest.raises(Deadlock, match="without calling it"):
            Run.load(job.folder / host)


def test_a_host_that_loses_its_power_is_named_by_the_one_that_is_left(start, hosts):
    job = start("--nnodes=2 --nproc-per-node=1", "train_with_checkpoints")
    job.wait_for(job.folder / "checkpoint-left.json")
    hosts.cut_the_cable()
    hosts.kill("right")
    assert job.end() != 0
    assert job.output().count("labkit: rank 1 is gone: host right (10.231.87.2)") == 1
    with pytest.raises(RankError, match="host right .* does not answer") as caught:
        Run.load(job.folder / "left")
    assert caught.value.rank == 1
    assert re.search(r"  rank 0  waits in all_reduce #\d+  program.py, line", str(caught.value))


def test_after_a_host_is_killed_the_other_gives_a_verdict_and_goes_on_from_its_checkpoint(
    start, hosts
):
    options = (
        "--nnodes=1:2 --nproc-per-node=2 --max-restarts=1 "
        "--rdzv-conf=last_call_timeout=6,keep_alive_interval=1,keep_alive_max_attempt=6"
    )
    job = start(options, "train_with_checkpoints")
    job.wait_for(job.folder / "checkpoint-left.json")
    hosts.kill("right")
    assert job.end() == 0, job.output()

    verdict = "labkit: ranks 2 and 3 are gone: host right (10.231.87.2) has no such process"
    assert job.output().count(verdict) == 1, job.output()
    # When one rank's all_reduce has failed, the other may not have started its own, or not noticed.
    there = r"^  ranks? (0|1|0 and 1) +(was|were|waits|wait) in all_reduce #"
    assert re.search(there, job.output(), re.M), job.output()
    run = Run.load(job.folder / "left")
    assert run.world_size == 2
    first_step, world_size, interface = run.values[0]
    assert first_step > 0, "the second attempt began from scratch"
    assert (world_size, interface) == (2, "lo")
    assert f"step {first_step} of attempt 1 is done" in run.logs[0]
    assert f"step {first_step} of attempt 0 is done" not in job.output()
    attempts = sorted(path.name for path in (job.folder / "left").glob("attempt-*"))
    assert attempts == ["attempt-0", "attempt-1"]


@pytest.mark.parametrize("required", ["0", "1"])
def test_without_two_hosts_a_test_skips_or_fails_where_they_are_required(
    monkeypatch, request, required
):
    monkeypatch.setenv(REQUIRE, required)
    monkeypatch.setattr(sys.modules[__name__], "why_not", lambda: "no such tool")
    outcome = pytest.fail.Exception if required == "1" else pytest.skip.Exception
    with pytest.raises(outcome, match="no two hosts here: no such tool"):
        two_hosts_can_be_made.__wrapped__()


def test_the_interface_that_reaches_a_host_has_a_name():
    address = address_towards("127.0.0.1")
    assert address == "127.0.0.1"
    if sys.platform.startswith("linux"):
        assert interface_of(address) == "lo"

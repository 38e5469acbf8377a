"""Healthy programs with random delays: whatever the ranks' pace, the doctor finds no fault."""

import inspect
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from labkit.doctor.verdict import Fault
from labkit.launch import launch, listen

NUM_STEPS = 4
STALL_S = 0.2  # asks the doctor far more often than the default of 5 s
LOOK_S = 0.05  # and looks for proofs five times as often, or 20 times where much is going on


def reduce_sum(world, step, nap_s):
    world.all_reduce(torch.ones(5))


def branches_for_a_broadcast(world, step, nap_s):
    root = step % world.size
    if world.rank == root:
        world.broadcast(torch.arange(4.0), root=root)
    else:
        world.broadcast(torch.empty(4), root)


def contributes_or_not(world, step, nap_s):
    if world.rank == 0:
        world.all_reduce(torch.ones(3))
    else:
        world.all_reduce(torch.zeros(3))


def ring(world, step, nap_s):
    if world.size > 1:
        pending = world.isend(torch.ones(step + 1), (world.rank + 1) % world.size)
        world.recv(torch.empty(step + 1), (world.rank - 1) % world.size)
        pending.wait()


def in_flight(world, step, nap_s):
    pendings = [world.all_reduce(torch.ones(n + 1), wait=False) for n in range(4)]
    for pending in reversed(pendings):
        pending.wait()


def uneven_rows(world, step, nap_s):
    ranks = range(world.size)
    rows = torch.ones(sum((world.rank + peer) % 3 for peer in ranks), 2)
    splits = [(world.rank + peer) % 3 for peer in ranks]
    world.all_to_all(rows, splits, splits)


def in_groups(world, step, nap_s):
    half = world.split(world.rank % 2)
    half.all_gather(torch.ones(2))
    odd = world.split(0 if world.rank % 2 else None)
    if odd:
        odd.barrier()


def gathers(world, step, nap_s):
    world.gather(torch.ones(2), root=0)
    world.scatter(torch.ones(2 * world.size) if world.rank == 0 else None, torch.empty(2))


def in_turns(world, step, nap_s):
    for turn in range(2 * world.size):
        with world.label("turn"):
            if turn % world.size == world.rank:
                world.all_reduce(torch.ones(2))
            else:
                world.all_reduce(torch.zeros(2))


def past_the_group(world, step, nap_s):
    torch.distributed.all_reduce(torch.ones(3))


def in_flight_past_the_group(world, step, nap_s):
    """Two process groups, entered in opposite order, and nothing waited for while ranks sleep."""
    groups = [torch.distributed.new_group(), torch.distributed.new_group()]
    if world.rank % 2:
        groups.reverse()
    works = [torch.distributed.all_reduce(torch.ones(2), group=g, async_op=True) for g in groups]
    time.sleep(nap_s)
    for work in works:
        work.wait()


def from_a_thread(world, step, nap_s, reported=None):
    """Both main threads wait for each other, until another thread sends.

    reported: a file. The thread does not send before it is there.
    """

    def send():
        time.sleep(nap_s)
        while reported is not None and not reported.exists():
            time.sleep(0.01)
        world.send(torch.ones(1), other)

    if world.rank < 2 <= world.size:
        other = 1 - world.rank
        sender = threading.Thread(target=send)
        sender.start()
        world.recv(torch.empty(1), src=other)
        sender.join()


def shards(world, step, nap_s):
    part = world.reduce_scatter(torch.ones(2 * world.size, 2), "mean")
    world.all_gather(part)


def averages_in_hooks(world, step, nap_s):
    def average(p):
        world.all_reduce(p.grad, "mean", out=p.grad)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(average)
    model(torch.ones(1, 2)).sum().backward()


def exchanges_with_both_neighbours(world, step, nap_s):
    """Each rank waits for its messages in an order of its own."""
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    if left != right:
        pendings = [world.irecv(torch.empty(2), peer) for peer in (left, right)]
        pendings += [world.isend(torch.ones(2), peer) for peer in (left, right)]
        for pending in pendings[:: -1 if world.rank % 2 else 1]:
            pending.wait()


def waits_for_one_that_naps(world, step, nap_s):
    """Ranks that take no part go on: in the last step they return."""
    source, destination = step % world.size, (step + 1) % world.size
    if world.rank == source != destination:
        time.sleep(nap_s)
        world.send(torch.ones(2), destination)
    elif world.rank == destination != source:
        world.recv(torch.empty(2), source)


def torchs_own_ddp(world, step, nap_s):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()


STEPS = [
    reduce_sum,
    branches_for_a_broadcast,
    contributes_or_not,
    ring,
    in_flight,
    uneven_rows,
    in_groups,
    gathers,
    in_turns,
    past_the_group,
    in_flight_past_the_group,
    shards,
    averages_in_hooks,
    exchanges_with_both_neighbours,
    waits_for_one_that_naps,
    torchs_own_ddp,
]


def steps_of(seed, world_size, more_steps=()):
    """The steps of a program, which rank is late in which of them, and in which one others nap."""
    steps = random.Random(seed)
    chosen = [*steps.sample(STEPS, NUM_STEPS), *more_steps]
    steps.shuffle(chosen)
    late = steps.randrange(world_size), steps.randrange(len(chosen))
    return chosen, late, steps.randrange(len(chosen))


def program(world, seed, *more_steps):
    """The same random steps on every rank, each at its own pace; some pauses exceed the stall."""
    own = random.Random(f"{seed}/{world.rank}")
    chosen, late, napping = steps_of(seed, world.size, more_steps)
    long_s = 4 * STALL_S if seed % 8 == 0 else 0.0
    for number, step in enumerate(chosen):
        time.sleep(own.uniform(0, 0.01))
        if (world.rank, number) == late:
            pause(long_s, computes=seed == 48)
        step(world, number, long_s if number == napping else 0.01)


def pause(seconds, computes):
    until_s = time.monotonic() + seconds
    if not computes:
        time.sleep(seconds)
    while time.monotonic() < until_s:
        pass


@pytest.fixture(scope="module")
def of_all_sizes():
    """The verdicts on healthy runs. That there are none of one size may be a matter of luck."""
    heard = []
    yield heard
    assert heard, "ranks were late, and the doctor never asked"


@pytest.fixture
def verdicts(monkeypatch, tmp_path):
    """Collect all verdicts of a doctor that looks early; a run reports only the first.

    The file `reported` is there once there is a verdict.
    """
    monkeypatch.setattr(listen, "_FIRST_LOOK_S", LOOK_S)
    monkeypatch.setattr(listen, "_LONGEST_LOOK_S", 2 * LOOK_S)
    heard = []
    look = listen.StallWatch.check

    def look_and_note(watch):
        if verdict := look(watch):
            heard.append(verdict)
            (tmp_path / "reported").touch()
        return verdict

    monkeypatch.setattr(listen.StallWatch, "check", look_and_note)
    return heard


def programs(world, seeds, *more_steps):
    """One after the other, in one launch: a start takes as much computing as ten of them."""
    for seed in seeds:
        program(world, seed, *more_steps)


# With --nightly 150 and 51 programs, a third of them at each size; without it 48 and 18. Those of
# seeds 32 and 48 pause for long in the middle of a step.
SEEDS = {"few": [*range(13), 24, 32, 48], "all": range(50)}
SEEDS_WITH_THREADS = {"few": [0, 1, 2, 3, 8, 32], "all": [*range(16), 32]}


@pytest.fixture
def how_many(request):
    return "all" if request.config.getoption("--nightly") else "few"


def test_few_programs_have_every_step_at_every_size():
    for world_size in (2, 3, 4):
        chosen = [steps_of(seed, world_size)[0] for seed in SEEDS["few"]]
        assert set(STEPS) == set(itertools.chain(*chosen))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_healthy_runs_get_no_verdict(world_size, how_many, verdicts, of_all_sizes):
    run_healthy(world_size, SEEDS[how_many])
    of_all_sizes += verdicts
    require_no_fault(verdicts)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_healthy_runs_in_which_threads_send_get_none_but_with_that(world_size, how_many, verdicts):
    run_healthy(world_size, SEEDS_WITH_THREADS[how_many], from_a_thread)
    require_no_fault(verdict for verdict in verdicts if not says_that_a_thread_may_send(verdict))


def run_healthy(world_size, seeds, *more_steps):
    def healthy(some):
        args = [(some, *more_steps)]
        launch(programs, world_size, args, stall=STALL_S, timeout=600, device="cpu")

    with ThreadPoolExecutor(2) as pool:  # two at a time: pauses of one are the other's
        list(pool.map(healthy, [seeds[n::6] for n in range(6)]))


@pytest.mark.parametrize("step", [in_turns, in_flight_past_the_group])
def test_what_only_looks_like_a_fault_gets_no_verdict(step, verdicts):
    launch(step, 2, [(0, 4 * STALL_S)], stall=STALL_S, timeout=600, device="cpu")
    require_no_fault(verdicts)


def test_what_another_thread_will_send_is_not_said_to_be_missing(verdicts, tmp_path):
    args = [(0, 0.0, tmp_path / "reported")]
    launch(from_a_thread, 2, args, stall=STALL_S, timeout=600, device="cpu")
    assert verdicts and all(map(says_that_a_thread_may_send, verdicts))


def require_no_fault(verdicts):
    """That ranks wait for one that is late is true, and no fault."""
    assert [verdict for verdict in verdicts if verdict.fault is not Fault.SLOW] == []


def says_that_a_thread_may_send(verdict):
    """It is true of from_a_thread alone, in which ranks 0 and 1 receive what threads send."""
    lines, first = inspect.getsourcelines(from_a_thread)
    (received,) = [first + n for n, line in enumerate(lines) if "world.recv" in line]
    return (
        verdict.fault is Fault.CYCLE
        and not verdict.is_proof
        and verdict.ranks == (0, 1)
        and verdict.text.count(f"(test_no_false_verdicts.py, line {received})") == 2
        and verdict.text.endswith("still brings it")
    )

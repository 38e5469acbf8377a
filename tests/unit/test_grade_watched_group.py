"""The group and the gate that code under test meets: what they refuse, and what they reveal."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread

import pytest
import torch
import torch.distributed as dist

from labkit import Group, run
from labkit.grade.exact import differ_in_one_element
from labkit.grade.gate import Gate
from labkit.grade.rules import BrokenRule
from labkit.grade.watched_group import WatchedGroup

ALLOWED = ("isend", "irecv")


def refusals(world, attempts):
    """What each attempt raises: (type, message, and whether the gate remembers it)."""
    gate = Gate(ALLOWED)
    group = WatchedGroup(world, gate, ALLOWED)
    told = []
    with gate:
        for attempt in attempts:
            try:
                attempt(group)
                told.append(("", "", False))
            except Exception as error:
                kept = bool(gate.broken) and gate.broken[-1].args == error.args
                told.append((type(error).__name__, str(error), kept))
    return told


ROUNDABOUT = {
    "torch.distributed": lambda group: dist.all_reduce(torch.ones(1)),
    "a process group's method": lambda group: dist.group.WORLD.allreduce([torch.ones(1)]),
    "a message past the group": lambda group: dist.isend(torch.ones(1), 0),
    "batched messages": lambda group: dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, torch.ones(1), 0)]
    ),
    "objects": lambda group: dist.all_gather_object([None], "x"),
    "a group of one's own": lambda group: Group.default().all_reduce(torch.ones(1)),
    "the group inside": lambda group: group._group.all_reduce(torch.ones(1)),
    "functional collectives": lambda group: dist._functional_collectives.all_reduce(
        torch.ones(1), "sum", dist.group.WORLD
    ),
    "a collective of the group": lambda group: group.all_reduce(torch.ones(1)),
    "an operation that is not listed": lambda group: group.send(torch.ones(1), 0),
}


@pytest.fixture(scope="module")
def told():
    """All ways round at once: one run."""
    import torch.distributed._functional_collectives  # noqa: F401

    return dict(zip(ROUNDABOUT, run(refusals, 1, args=(list(ROUNDABOUT.values()),)).values[0]))


@pytest.mark.parametrize("way", ROUNDABOUT)
def test_every_way_to_the_wire_past_what_is_allowed_is_refused_and_remembered(told, way):
    kind, message, kept = told[way]
    assert (kind, kept) == ("ForbiddenOperation", True), message
    assert "use group.isend, group.irecv" in message
    assert "test_grade_watched_group.py" in message, "the line that called it"


def in_a_thread_of_each_kind(world):
    """What became of communication past the group, in threads; and of the group's own."""
    gate = Gate(("all_reduce",))
    group = WatchedGroup(world, gate, ("all_reduce",))
    allowed, past = partial(group.all_reduce, torch.ones(1)), lambda: dist.all_reduce(torch.ones(1))
    with gate:
        threads = [Thread(target=past), Thread(target=allowed)]
        for thread in threads:
            thread.start()
            thread.join()
        with ThreadPoolExecutor(1) as pool:
            in_pool = [pool.submit(each).exception() for each in (past, allowed, past)]
    after = Thread(target=past)
    after.start()
    after.join()
    return [type(each).__name__ for each in in_pool], len(gate.broken)


def test_threads_of_the_code_under_test_stand_before_a_gate_of_their_own():
    ((in_pool, num_broken),) = run(in_a_thread_of_each_kind, 1).values
    assert in_pool == ["ForbiddenOperation", "NoneType", "ForbiddenOperation"]
    assert num_broken == 3, "one in a plain thread, two in a pool, and none after the gate is gone"


def test_what_no_group_has_is_named_with_what_there_is():
    (told,) = run(refusals, 1, args=([lambda group: group.al_reduce(1)],)).values
    assert told[0][:1] == ("AttributeError",) and "rank, size, device" in told[0][1]


def to_the_right(world, dtype, misuse):
    """Pass a tensor around, misusing the buffers in one way; what came, and what it raised."""
    gate = Gate(ALLOWED)
    group = WatchedGroup(world, gate, ALLOWED)
    x = torch.full((3,), 5 + world.rank, dtype=dtype)
    seen = received = None
    with gate:
        outgoing = group.isend(x, (world.rank + 1) % world.size)
        buffer = torch.zeros(2, 3, dtype=dtype)[:, ::2].flatten()[:3].clone()
        incoming = group.irecv(buffer, (world.rank - 1) % world.size)
        seen = buffer.clone()
        if misuse == "writes to the buffer":
            buffer[1] = 77
        if misuse == "receives into it twice":
            again = group.isend(x, (world.rank + 1) % world.size)
            second = group.irecv(buffer, (world.rank - 1) % world.size)
        try:
            received = incoming.wait()
            if misuse == "receives into it twice":
                again.wait()
                second.wait()
            if misuse == "writes":
                x[1] = 77
            if misuse != "forgets":
                outgoing.wait()
                outgoing.wait()
            group.end_case()
            error = None
        except BrokenRule as raised:
            error = type(raised).__name__, str(raised)
    return seen, received is buffer, None if received is None else received.clone(), error


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_a_buffer_holds_no_guessable_number_until_its_wait(dtype):
    for rank, value in enumerate(run(to_the_right, 2, args=(dtype, "")).values):
        seen, is_same, received, error = value
        assert (seen.isnan() if dtype.is_floating_point else seen == 113).all()
        assert is_same and received.tolist() == [6 - rank] * 3 and error is None


def test_a_write_between_isend_and_wait_is_found_whatever_the_timing():
    for *_, error in run(to_the_right, 2, args=(torch.float32, "writes")).values:
        kind, message = error
        assert kind == "ChangedInFlight" and "wait first, or send a copy" in message


@pytest.mark.parametrize("misuse", ["writes to the buffer", "receives into it twice"])
def test_a_write_between_irecv_and_wait_is_found_whatever_the_timing(misuse):
    for *_, error in run(to_the_right, 2, args=(torch.bfloat16, misuse)).values:
        kind, message = error
        assert kind == "WrittenWhileReceiving" and "a buffer of its own" in message


def pass_three(world, altered):
    """Three messages to the neighbour, the last one blocking on both sides; what arrives."""
    group = WatchedGroup(world, Gate(("isend", "irecv", "recv")), ("isend", "irecv", "recv"))
    group.begin_case(0.0, altered if world.rank == 1 else None)
    shapes = ((), (2, 2), (3,))
    pendings = [group.isend(torch.zeros(shape), 1 - world.rank) for shape in shapes]
    incoming = [group.irecv(torch.ones(shape), 1 - world.rank) for shape in shapes[:2]]
    arrived = [pending.wait() for pending in incoming]
    arrived.append(group.recv(torch.ones(shapes[2]), 1 - world.rank))
    for pending in pendings:
        pending.wait()
    return [x.tolist() for x in arrived]


@pytest.mark.parametrize(
    ("altered", "arrives"),
    [
        (None, [0.0, [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0, 0.0]]),
        (1, [0.0, [[1.0, 0.0], [0.0, 0.0]], [0.0, 0.0, 0.0]]),
        (2, [0.0, [[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0, 0.0]]),
        (3, [0.0, [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0, 0.0]]),
    ],
)
def test_one_message_of_more_than_a_number_can_be_changed_on_its_way(altered, arrives):
    untouched, changed = run(pass_three, 2, args=(altered,)).values
    assert untouched == [0.0, [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0, 0.0]]
    assert changed == arrives


def test_an_operation_that_nobody_waited_for_is_found():
    for *_, error in run(to_the_right, 2, args=(torch.float32, "forgets")).values:
        assert error[0] == "NeverWaited" and "the isend at" in error[1]


def ping_seconds(world, delay_s):
    gate = Gate(ALLOWED)
    group = WatchedGroup(world, gate, ALLOWED)
    group.begin_case(delay_s)
    started_s = time.monotonic()
    for _ in range(20):
        pending = [group.isend(torch.ones(1), 1 - world.rank)]
        pending.append(group.irecv(torch.ones(1), 1 - world.rank))
        for each in pending:
            each.wait()
    return time.monotonic() - started_s


def test_a_rank_can_be_made_slow():
    # 40 operations sleep for 10 ms each on average; half of that is beyond chance.
    assert min(run(ping_seconds, 2, args=(0.02,)).values) > 0.2


def collective_in_flight(world, misuse):
    """What is in `out` before and after wait(), and the rules that were broken."""
    gate = Gate(("all_reduce",))
    group = WatchedGroup(world, gate, ("all_reduce",))
    group.begin_case(0.0)
    x = torch.full((2,), 1.0 + world.rank)
    with gate:
        pending = group.all_reduce(x, out=x, wait=False)
        early = x.clone()
        try:
            if misuse == "writes":
                x.fill_(7.0)
            if misuse != "forgets":
                pending.wait()
            group.end_case()
        except BrokenRule:
            pending._pending.wait()  # or the other ranks would wait for this one
    return early.tolist(), x.tolist(), [type(each).__name__ for each in gate.broken]


def test_a_collective_under_way_leaves_its_sum_at_wait_and_not_before():
    for early, after, broken in run(collective_in_flight, 2, args=("",)).values:
        assert all(value != value for value in early), "NaN until then"
        assert after == [3.0, 3.0] and broken == []


@pytest.mark.parametrize(
    ("misuse", "rule"), [("writes", "WrittenWhileReceiving"), ("forgets", "NeverWaited")]
)
def test_a_collective_that_is_disturbed_or_forgotten_is_refused(misuse, rule):
    for _, _, broken in run(collective_in_flight, 2, args=(misuse,)).values:
        assert broken == [rule]


def test_a_collective_under_way_with_a_result_of_its_own_leaves_x_alone():
    def program(world):
        gate = Gate(("all_reduce",))
        group = WatchedGroup(world, gate, ("all_reduce",))
        group.begin_case(0.0)
        x = torch.ones(2)
        with gate:
            total = group.all_reduce(x, wait=False).wait()
            group.end_case()
        return x.tolist(), total.tolist()

    assert run(program, 2).values == [([1.0, 1.0], [2.0, 2.0])] * 2


def changed_on_its_way(world, dtypes):
    """By dtype: whether a message of zeros, and of a view of NaN, is another one afterwards."""
    changed = []
    for dtype in dtypes:
        for value in (0.0, float("nan"), -5e37):
            x = torch.full((4,), value).view(dtype)
            group = WatchedGroup(world, Gate(("send", "recv")), ("send", "recv"))
            group.begin_case(0.0, altered=1)
            if world.rank == 0:
                group.send(x, 1)
            else:
                received = group.recv(torch.empty_like(x), 0)
                changed.append(differ_in_one_element(received, x))
    return changed


def test_a_message_can_be_changed_in_whichever_dtype_it_travels():
    dtypes = (torch.float32, torch.int32, torch.uint8, torch.bool, torch.uint16, torch.bfloat16)
    _, changed = run(changed_on_its_way, 2, args=(dtypes,)).values
    assert changed == [True] * len(changed)

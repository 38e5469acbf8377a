"""The grader of tree_broadcast: what it accepts, how it counts steps, and what cannot fool it."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.collectives import ring_all_gather
from labkit.grade import check
from labkit.grade.graders.broadcast_tree import (
    fewest_steps,
    fewest_steps_below,
    schedule,
    steps_of,
)
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])


def halving_with_all_sends_in_flight(x, root, group):
    """From the largest distance to the smallest: another tree than the solution's."""
    n = group.size
    position = (group.rank - root) % n
    out = x.contiguous().clone()
    pendings = []
    distance = 1 << (n - 1).bit_length()
    while distance > 1:
        distance //= 2
        if position % (2 * distance) == 0 and position + distance < n:
            pendings.append(group.isend(out, (position + distance + root) % n))
        elif position % (2 * distance) == distance:
            group.irecv(out, (position - distance + root) % n).wait()
    for pending in pendings:
        pending.wait()
    return out


def interval_is_halved(x, root, group):
    """Whoever has x for an interval of positions hands over the upper half; nothing empty goes."""
    n = group.size
    position = (group.rank - root) % n
    out = torch.empty_like(x)
    if position == 0:
        out.copy_(x)
    low, high = 0, n
    while high - low > 1 and x.numel():
        middle = (low + high + 1) // 2
        if position == low:
            group.send(out, (middle + root) % n)
        if position == middle:
            group.recv(out, (low + root) % n)
        low, high = (low, middle) if position < middle else (middle, high)
    return out


def as_bytes(x, root, group):
    out = x.contiguous().clone()
    if out.numel():
        down_the_tree_in_place(out.view(-1).view(torch.uint8), root, group)
    return out


def as_words_that_do_not_add(x, root, group):
    """Two bytes each: views of floats as uint16, to which torch adds nothing."""
    out = x.flatten().clone()
    if out.numel():
        two = out.element_size() % 2 == 0
        down_the_tree_in_place(out.view(torch.uint16) if two else out, root, group)
    return out.view(x.shape)


def from_its_end_to_its_beginning(x, root, group):
    out = x.flatten().flip(0).contiguous()
    down_the_tree_in_place(out, root, group)
    return out.flip(0).view(x.shape)


def in_a_thread_of_its_own(x, root, group):
    out = x.clone()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(down_the_tree_in_place, out, root, group).result()
    return out


RIGHT = [
    halving_with_all_sends_in_flight,
    interval_is_halved,
    as_bytes,
    as_words_that_do_not_add,
    from_its_end_to_its_beginning,
    in_a_thread_of_its_own,
]


@pytest.mark.parametrize("program", RIGHT)
def test_right_answers_of_another_kind_pass(program):
    verdict = check("tree_broadcast", program, workspace=WORKSPACE)
    assert verdict, verdict


BINOMIAL = [[1, 2, 4], [3, 5], [6], [7], [], [], [], []]


def test_steps_are_counted_by_the_order_of_sends_and_not_by_a_clock():
    assert steps_of(BINOMIAL, 0) == {0: 0, 1: 1, 2: 2, 4: 3, 3: 2, 5: 3, 6: 3, 7: 3}
    assert schedule(BINOMIAL, 0) == "\n".join(
        ["step 1: 0 -> 1", "step 2: 0 -> 2, 1 -> 3", "step 3: 0 -> 4, 1 -> 5, 2 -> 6, 3 -> 7"]
    )
    star, chain = [[1, 2, 3], [], [], []], [[1], [2], [3], []]
    assert max(steps_of(star, 0).values()) == max(steps_of(chain, 0).values()) == 3
    assert steps_of([[], [2], [], [1]], 3) == {3: 0, 1: 1, 2: 2}, "rank 0 is not reached"


def test_a_tree_in_the_wrong_order_is_told_from_one_that_is_too_deep():
    leaf_first = [[1, 2], [], [3], []]
    assert max(steps_of(leaf_first, 0).values()) == 3 and fewest_steps_below(leaf_first, 0) == 2
    heap = [[1, 2], [3, 4], [5, 6], [7], [], [], [], []]
    assert max(steps_of(heap, 0).values()) == fewest_steps_below(heap, 0) == 4
    assert [fewest_steps(n) for n in range(1, 9)] == [0, 1, 2, 2, 3, 3, 3, 3]


def down_the_tree(x, root, group):
    """A right answer, for programs that go wrong in another way."""
    out = x.clone()
    down_the_tree_in_place(out, root, group)
    return out


def down_the_tree_in_place(out, root, group):
    n = group.size
    position = (group.rank - root) % n
    distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(out, (position + distance + root) % n)
        elif position < 2 * distance:
            group.recv(out, (position - distance + root) % n)
        distance *= 2


def through_torch_distributed(x, root, group):
    out = x.clone()
    dist.broadcast(out, root)
    return out


def through_the_group_inside(x, root, group):
    return group._group.broadcast(x, root)


def catches_the_refusal(x, root, group):
    try:
        group.broadcast(x, root)
    except Exception:
        return down_the_tree(x, root, group)


def labkits_own_collective(x, root, group):
    parts = ring_all_gather(x.flatten(), group.size * x.numel(), group)
    return parts.view(group.size, *x.shape)[root].clone()


SHARED = "labkit-test-broadcast-"


def through_a_file_with_messages_for_show(x, root, group):
    """The messages bring the root's signal that the file is there; what they hold is not used."""
    path = os.path.join(tempfile.gettempdir(), f"{SHARED}{os.getppid()}")
    if group.rank == root:
        torch.save(x.clone(), path)
    down_the_tree(x, root, group)
    return torch.load(path)


def in_two_pieces(x, root, group):
    halves = [down_the_tree(half, root, group) for half in x.flatten().tensor_split(2)]
    return torch.cat(halves).view(x.shape)


def also_tells_the_root(x, root, group):
    n = group.size
    out = down_the_tree(x, root, group)
    if n > 1 and group.rank == (root - 1) % n:
        group.send(out, root)
    if n > 1 and group.rank == root:
        group.recv(torch.empty_like(out), (root - 1) % n)
    return out


BUFFERS = {}


def keeps_one_buffer(x, root, group):
    out = BUFFERS.setdefault((x.shape, x.dtype), torch.empty_like(x))
    out.copy_(down_the_tree(x, root, group))
    return out


def spoils_x_where_it_does_not_count(x, root, group):
    out = down_the_tree(x, root, group)
    if group.rank != root:
        x.zero_()
    return out


def its_own_x_where_x_is_large(x, root, group):
    out = down_the_tree(x, root, group)
    return out if x.numel() < 1000 else x.clone()


def twice_to_be_sure(x, root, group):
    down_the_tree(x, root, group)
    return down_the_tree(x, root, group)


WRONG = {
    through_torch_distributed: "calls a library collective",
    through_the_group_inside: "calls a library collective",
    catches_the_refusal: "calls a library collective",
    labkits_own_collective: "calls the answer itself",
    through_a_file_with_messages_for_show: "the result does not come from the messages",
    in_two_pieces: "sends x in pieces",
    also_tells_the_root: "sends to the root",
    keeps_one_buffer: "returns the same memory again",
    spoils_x_where_it_does_not_count: "changes its input",
    its_own_x_where_x_is_large: "receives, and returns its own x",
    twice_to_be_sure: "a rank receives more than once",
}


@pytest.fixture(scope="module", autouse=True)
def no_file_is_left():
    yield
    for path in Path(tempfile.gettempdir()).glob(f"{SHARED}*"):
        path.unlink()


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_the_tree_are_refused_by_name(program):
    verdict = check("tree_broadcast", program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict

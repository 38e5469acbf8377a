"""A ring all-reduce, followed through its journals: who holds what after each step, and drawn."""

import dataclasses

import pytest
import torch

from labkit import run, viz
from labkit.calc import chunk_numels, collective
from labkit.collectives import ring_all_reduce, ring_reduce_scatter, tree_all_reduce
from labkit.notebook import moving
from labkit.viz.rings import contributors, ring_walk

NUMEL = 10


def one_ring(world):
    ring_all_reduce(torch.ones(NUMEL), world)
    world.barrier()  # is no message


def odd_ranks_only(world):
    odd = world.split(0 if world.rank % 2 else None)
    if odd:
        ring_all_reduce(torch.ones(NUMEL), odd)


def tagged_ring(world):
    """A ring by hand the other way round, which keeps what it held after every step."""
    n, rank = world.size, world.rank
    left, right = (rank + 1) % n, (rank - 1) % n
    x = viz.tagged(rank, n)
    states = [x.clone()]
    for step in range(2 * (n - 1)):
        leaving = (rank + 1 + step) % n
        arriving = (leaving + 1) % n
        sending = world.isend(x[leaving : leaving + 1].clone(), right)
        came = world.recv(x[:1].clone(), left)
        x[arriving] = came + (x[arriving] if step < n - 1 else 0)
        sending.wait()
        states.append(x.clone())
    return states


@pytest.fixture(scope="module")
def ring():
    return run(one_ring, 4)


@pytest.fixture(scope="module")
def walk(ring):
    return ring_walk(ring)


def test_every_step_moves_each_chunk_but_none_twice(walk):
    assert len(walk.steps) == 6
    for hops in walk.steps:
        assert sorted(hop.chunk for hop in hops) == [0, 1, 2, 3]
        assert [hop.destination for hop in hops] == [1, 2, 3, 0]


def test_sizes_and_bytes_are_those_of_the_chunks(walk):
    numels = chunk_numels(NUMEL, 4)
    for hops in walk.steps:
        assert all(hop.numel == numels[hop.chunk] for hop in hops)
    for rank in range(4):
        sent = sum(hop.nbytes for hops in walk.steps for hop in hops if hop.source == rank)
        assert sent == collective("all_reduce", "ring", 4, 4 * NUMEL, rank=rank).sent_bytes


def test_nothing_leaves_before_it_has_come(walk):
    for hops, following in zip(walk.steps, walk.steps[1:]):
        came = {hop.destination: hop for hop in hops}
        for hop in following:
            assert hop.chunk == came[hop.source].chunk
            assert hop.sent_s >= came[hop.source].arrived_s > came[hop.source].sent_s


def test_each_rank_completes_its_own_chunk_and_then_gets_the_others(walk):
    everyone = frozenset(range(4))
    complete = [sum(h == everyone for rank in state for h in rank) for state in walk.states]
    assert complete == [0, 0, 0, 4, 8, 12, 16]
    assert [walk.states[3][rank][rank] for rank in range(4)] == [everyone] * 4
    assert [walk.phase(step) for step in (1, 3, 4, 6)] == ["reduce-scatter"] * 2 + [
        "all-gather"
    ] * 2


def test_the_journals_say_the_same_as_the_numbers_themselves():
    result = run(tagged_ring, 4)
    walk = ring_walk(result)
    assert walk.ranks == (0, 3, 2, 1)
    # Chunks are counted along the ring; this one numbers them by rank.
    for position, rank in enumerate(walk.ranks):
        for step, held in enumerate(result.values[rank]):
            by_rank = [walk.states[step][position][walk.ranks.index(s)] for s in range(4)]
            tags = [frozenset(contributors(value.item())) for value in held]
            assert by_rank == tags


def test_a_ring_among_some_ranks_keeps_their_numbers():
    result = run(odd_ranks_only, 6)
    assert ring_walk(result).ranks == (1, 3, 5)
    texts = [text.get_text() for text in viz.ring_steps(result).axes[0].texts]
    assert {"rank 1", "rank 3", "rank 5"} <= set(texts) and "rank 0" not in texts
    assert viz.ring_steps(result).png()


# --- what is no ring ---------------------------------------------------------------------------


def two_rings(world):
    for _ in range(2):
        ring_all_reduce(torch.ones(NUMEL), world)


def half_a_ring(world):
    ring_reduce_scatter(torch.ones(NUMEL), world)


def tree(world):
    tree_all_reduce(torch.ones(NUMEL), world)


def pairs(world):
    partner = world.rank ^ 1
    for _ in range(6):
        pending = world.isend(torch.ones(1), partner)
        world.recv(torch.empty(1), partner)
        pending.wait()


def library(world):
    world.all_reduce(torch.ones(NUMEL))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (two_rings, "rank 0 sent 12 .* 6"),
        (half_a_ring, "rank 0 sent 3"),
        (tree, "ranks 1, 2"),
        (pairs, "0 to 1, 1 to 0, 2 to 3, 3 to 2"),
        (library, "nobody"),
    ],
)
def test_messages_that_are_no_ring_all_reduce_are_refused(program, says):
    result = run(program, 4)
    for draw in (viz.ring_steps, moving.ring):
        with pytest.raises(ValueError, match=says):
            draw(result)


def changed(ring, kind, sequence, **fields):
    """The ring's journals, in which rank 1's n-th send or recv is another one."""
    timelines = [dataclasses.replace(each, operations=[*each.operations]) for each in ring.timeline]
    operations = timelines[1].operations
    for number, operation in enumerate(operations):
        if (operation.kind, operation.sequence) == (kind, sequence):
            operations[number] = dataclasses.replace(operation, **fields)
    return timelines


def test_a_rank_that_does_not_pass_on_what_it_received_is_named(ring):
    with pytest.raises(ValueError, match=r"rank 1 .*step 2: \(2,\).*\(7,\)"):
        ring_walk(changed(ring, "send", 3, shape=(7,)))
    with pytest.raises(ValueError, match="rank 1 .*message 3 .*message 2"):
        ring_walk(changed(ring, "send", 3, posted_s=-1.0))
    with pytest.raises(ValueError, match="arrived"):
        ring_walk(changed(ring, "recv", 6, done_s=None))


# --- pictures ----------------------------------------------------------------------------------


def heavy(picture):
    patches = [patch for patch in picture.axes[0].patches if not patch.get_fill()]
    return [patch for patch in patches if patch.get_linewidth() > 1]


def test_all_steps_are_drawn_from_a_run(ring):
    picture = viz.ring_steps(ring)
    assert len(heavy(picture)) == 4 * 6
    assert repr(picture) == "<ring of 4 ranks in 6 steps>"
    assert len(picture.png()) < 100_000

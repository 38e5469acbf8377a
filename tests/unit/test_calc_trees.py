"""calc's trees, halving-doubling and chain: sums by hand, laws for any n, steps played through."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit import calc
from labkit.calc.traffic.cost import best_num_blocks, num_blocks
from labkit.collectives.double_tree import double_tree
from labkit.collectives.tree import binary_tree

world_sizes = st.integers(1, 70)
numels = st.integers(0, 3000)
LINK = {"alpha": 5e-6, "beta": 1 / 50e9}


@st.composite
def ranks_and_roots(draw):
    n = draw(world_sizes)
    return n, draw(st.integers(0, n - 1))


def of_each_rank(operation, algorithm, numel, n, **more):
    """Elements that each rank sends."""
    sizes = {"nbytes": 4 * numel, **more}
    asked = (calc.collective(operation, algorithm, n, rank=r, **sizes) for r in range(n))
    return [each.sent_bytes // 4 for each in asked]


def seconds_of(operation, algorithm, n, nbytes, alpha, beta, block_bytes=None):
    asked = calc.collective(operation, algorithm, n, nbytes, block_bytes=block_bytes)
    return asked.seconds(alpha, beta)


def test_a_tree_of_eight_by_hand():
    # 0 -> 1, 2; 1 -> 3, 4; 2 -> 5, 6; 3 -> 7
    assert of_each_rank("reduce", "tree", 1, 8) == [0, 1, 1, 1, 1, 1, 1, 1]
    assert of_each_rank("broadcast", "tree", 1, 8) == [2, 2, 2, 1, 0, 0, 0, 0]
    assert of_each_rank("all_reduce", "tree", 1, 8) == [2, 3, 3, 2, 1, 1, 1, 1]


def test_a_tree_of_four_from_root_three():
    # 3 -> 0, 1; 0 -> 2
    assert of_each_rank("broadcast", "tree", 10, 4, root=3) == [10, 0, 0, 20]
    assert of_each_rank("reduce", "tree", 10, 4, root=3) == [10, 10, 10, 0]


def test_a_double_tree_of_six_by_hand():
    # Tree 0: 3 -> 1, 5; 1 -> 0, 2; 5 -> 4. Tree 1: 2 -> 0, 4; 0 -> 5, 1; 4 -> 3. Halves 51, 50.
    edges = [(1, 3), (3, 1), (1, 2), (2, 1), (1, 2), (2, 1)]
    assert of_each_rank("all_reduce", "double_tree", 101, 6) == [
        51 * first + 50 * second for first, second in edges
    ]
    assert [
        calc.collective("all_reduce", "double_tree", 6, 404, rank=rank, block_bytes=200).messages
        for rank in range(6)
    ] == [2 * first + second for first, second in edges]


def test_halving_doubling_over_three_and_four_ranks_by_hand():
    # 4 ranks, 10 elements: halves 5 and 5, quarters 3, 2, 3, 2. Rank 0: 5, 2 away, then 3, 5.
    four = of_each_rank("all_reduce", "halving_doubling", 10, 4)
    assert four == [5 + 2 + 3 + 5, 5 + 2 + 3 + 5, 5 + 3 + 2 + 5, 5 + 3 + 2 + 5]
    # 3 ranks, 7 elements: rank 0 hands 7 to rank 1, which swaps 3 for 4 with rank 2.
    three = of_each_rank("all_reduce", "halving_doubling", 7, 3)
    assert three == [7, 3 + 4 + 7, 4 + 3]
    assert [
        calc.collective("all_reduce", "halving_doubling", 3, 28, rank=rank, block_bytes=8).messages
        for rank in range(3)
    ] == [*(4, 2 + 1 + 1, 2 + 1)]


def test_steps_by_hand():
    for n, tree, double_tree_, halving, chain in [
        (1, 0, 0, 0, 0),
        (2, 2, 2, 2, 1),
        (3, 4, 4, 4, 2),
        (4, 4, 8, 4, 3),
        (7, 8, 8, 6, 6),
        (8, 8, 12, 6, 7),
        (1024, 36, 40, 20, 1023),
    ]:
        assert calc.collective("all_reduce", "tree", n).steps == tree
        assert calc.collective("all_reduce", "double_tree", n).steps == double_tree_
        assert calc.collective("all_reduce", "halving_doubling", n).steps == halving
        assert calc.collective("broadcast", "ring", n).steps == chain


@pytest.mark.parametrize(
    ("operation", "algorithm", "expected"),
    [
        # 8 ranks, 1000 bytes, alpha 2, beta 0.01, in one block of 10 s and in ten of 1 s.
        ("broadcast", "tree", (4 * 12, 22 * 3)),
        ("all_reduce", "tree", (8 * 12, 44 * 3)),
        # Two halves at the same time, in one block of 5 s and in five of 1 s.
        ("all_reduce", "double_tree", (84, 28 * 3)),
        ("broadcast", "ring", (7 * 12, 16 * 3)),
    ],
)
def test_seconds_by_hand(operation, algorithm, expected):
    found = (seconds_of(operation, algorithm, 8, 1000, 2, 0.01, block) for block in (1000, 100))
    assert tuple(found) == pytest.approx(expected)


def test_the_last_block_is_a_block_too():
    # 1000 bytes in 300 + 300 + 300 + 100: four blocks, which are taken to be equal
    assert seconds_of("broadcast", "ring", 8, 1000, 2, 0.01, 300) == pytest.approx(10 * (2 + 2.5))


def test_a_block_has_a_byte_however_cheap_messages_are():
    assert best_num_blocks(10, alpha=1e-12, beta=1e-3, first=12, every=1) == 10


def test_seconds_of_halving_doubling_by_hand():
    for n, longest in ((8, 1.25), (5, 10)):
        seconds = seconds_of("all_reduce", "halving_doubling", n, 1000, 2, 0.01)
        assert seconds == pytest.approx(2 * (2 + 5 + 2 + 2.5 + 2 + longest))


@given(ranks_and_roots(), numels)
def test_along_every_edge_everything_goes_once(rank_and_root, numel):
    n, root = rank_and_root
    for operation in (
        ("reduce", "tree"),
        ("broadcast", "tree"),
        ("broadcast", "ring"),
    ):
        assert sum(of_each_rank(*operation, numel, n, root=root)) == (n - 1) * numel


@given(world_sizes, numels)
def test_an_all_reduce_along_n_minus_1_edges_sends_everything_twice(n, numel):
    for algorithm in ("tree", "double_tree"):
        assert sum(of_each_rank("all_reduce", algorithm, numel, n)) == 2 * (n - 1) * numel


@given(world_sizes, numels)
def test_no_rank_of_a_double_tree_sends_more_than_twice_the_longer_half_times_two(n, numel):
    assert max(of_each_rank("all_reduce", "double_tree", numel, n)) <= 4 * ((numel + 1) // 2)


@given(st.integers(0, 6), numels)
def test_halving_doubling_sends_what_a_ring_does_in_all(power, numel):
    n = 2**power
    mine = of_each_rank("all_reduce", "halving_doubling", numel, n)
    assert sum(mine) == sum(of_each_rank("all_reduce", "ring", numel, n))
    # Every rank gets back as many elements as it gave away, up to the odd ones of each halving.
    assert max(mine) - min(mine) <= 2 * power


@given(world_sizes, numels)
def test_those_beside_a_power_of_two_send_everything_once_more(n, numel):
    power_of_two = 2 ** (n.bit_length() - 1)
    num_folded = n - power_of_two
    mine = of_each_rank("all_reduce", "halving_doubling", numel, n)
    working = mine[1 : 2 * num_folded : 2] + mine[2 * num_folded :]
    alone = of_each_rank("all_reduce", "halving_doubling", numel, power_of_two)
    assert mine[0 : 2 * num_folded : 2] == [numel] * num_folded
    assert working == [
        sent + (numel if number < num_folded else 0) for number, sent in enumerate(alone)
    ]


@given(numels, st.sampled_from([1, 2, 4, 8]), st.integers(1, 5000))
def test_blocks_are_those_of_split(numel, itemsize, block_bytes):
    split = torch.empty(numel).split(max(block_bytes // itemsize, 1))
    assert num_blocks(numel, itemsize, block_bytes) == len(split)


@given(
    st.floats(0, 1e10),
    st.sampled_from([0, 1e-7, 5e-6, 1e-3]),
    st.sampled_from([0, 1e-12, 1e-10, 1e-8]),
    st.integers(1, 12),
    st.integers(1, 4),
)
def test_the_best_number_of_blocks_is_no_worse_than_any(nbytes, alpha, beta, first, every):
    every = min(every, first)
    most = max(int(nbytes), 1)

    def seconds(k):
        return (first + every * (k - 1)) * (alpha + nbytes / k * beta)

    best = best_num_blocks(nbytes, alpha, beta, first, every)
    others = {1, 2, 3, 10, 1000, 10**6, best - 1, best + 1, best // 2, 2 * best, most}
    assert 1 <= best <= most
    assert all(seconds(best) <= seconds(k) * (1 + 1e-12) for k in others if 1 <= k <= most)


@given(world_sizes, st.floats(1, 1e9), st.integers(1, 10**9))
def test_the_best_block_is_no_slower_than_a_given_one(n, nbytes, block_bytes):
    for operation in (
        ("broadcast", "tree"),
        ("all_reduce", "tree"),
        ("all_reduce", "double_tree"),
        ("broadcast", "ring"),
    ):
        best = seconds_of(*operation, n, nbytes, **LINK)
        given = seconds_of(*operation, n, nbytes, **LINK, block_bytes=block_bytes)
        assert best <= given * (1 + 1e-12)


def test_the_best_number_of_blocks_of_a_chain_is_what_its_formula_says():
    # k = sqrt(6 * 1e9 * beta / alpha) = sqrt(6 * 0.02 / 5e-6) = 154.9
    assert best_num_blocks(1e9, **LINK, first=7, every=1) == 155
    best = seconds_of("broadcast", "ring", 8, 1e9, **LINK)
    block_bytes = -(-(10**9) // 155)
    assert seconds_of("broadcast", "ring", 8, 1e9, **LINK, block_bytes=block_bytes) == best


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 23, 64, 100])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_broadcast_played_through_takes_the_steps_of_the_formula(n, blocks):
    arrived = {0: [0] * blocks}
    for rank in range(n):
        now = 0
        for block in range(blocks):
            for child in binary_tree(rank, n, root=0).children:
                now = max(now, arrived[rank][block]) + 1  # one message at a time
                arrived.setdefault(child, []).append(now)
    steps = max(max(times) for times in arrived.values())
    assert steps == calc.collective("broadcast", "tree", n, 4 * blocks, block_bytes=4).steps


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 11, 16, 23, 64, 100])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_two_trees_broadcast_at_once_in_the_steps_of_the_formula(n, blocks):
    """By the paper's schedule: an edge is used in every other step, so that none gets in the way.

    Every rank has at most two edges to send on and two to receive on; they take turns.
    """
    trees = [[double_tree(rank, n)[tree] for rank in range(n)] for tree in (0, 1)]
    edges = {
        (tree, place.parent, rank)
        for tree, places in enumerate(trees)
        for rank, place in enumerate(places)
        if place.parent is not None
    }
    colors = two_colored(edges)
    has = [
        {rank: blocks if place.parent is None else 0 for rank, place in enumerate(places)}
        for places in trees
    ]
    step = 0
    while any(count < blocks for counts in has for count in counts.values()):
        step += 1
        ready = [
            (tree, sender, receiver)
            for tree, sender, receiver in edges
            if (n == 2 or colors[tree, sender, receiver] == step % 2)
            and has[tree][receiver] < has[tree][sender]
        ]
        assert len({sender for _, sender, _ in ready}) == len(ready), "a rank sends twice"
        assert len({receiver for _, _, receiver in ready}) == len(ready), "a rank receives twice"
        for tree, _, receiver in ready:
            has[tree][receiver] += 1
    halves = calc.collective("all_reduce", "double_tree", n, 2 * 4 * blocks, block_bytes=4)
    assert 2 * step <= halves.steps


def two_colored(edges):
    """0 or 1 for each edge: different where two share a sender, or share a receiver."""
    colors = {}
    for first in sorted(edges):
        todo = [(first, 0)]
        while todo:
            edge, color = todo.pop()
            if edge in colors:
                continue
            colors[edge] = color
            todo += [
                (other, 1 - color)
                for other in edges
                if other != edge and (other[1] == edge[1] or other[2] == edge[2])
            ]
    return colors


@given(world_sizes)
def test_a_rank_is_inner_in_one_tree_of_two_at_most(n):
    for rank in range(n):
        places = double_tree(rank, n)
        assert min(len(place.children) for place in places) == 0
        assert all(
            double_tree(child, n)[tree].parent == rank
            for tree, place in enumerate(places)
            for child in place.children
        )

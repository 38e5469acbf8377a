"""calc.collective: what is asked wrongly is named, and the mean is that of the exact bytes."""

import itertools

import pytest

from labkit import calc
from labkit.calc.traffic.collective import COLLECTIVES

SPLITS = [[9, 2, 0], [1, 9, 4], [3, 3, 9]]
ALL = [(each.operation, each.algorithm) for each in COLLECTIVES]


def asked(operation, algorithm, n, numel, rank=None):
    hosts = {"ranks_per_host": 1} if algorithm == "hierarchical" else {}
    return calc.collective(operation, algorithm, n, 4 * numel, rank=rank, **hosts)


@pytest.mark.parametrize(("operation", "algorithm"), ALL)
def test_without_a_rank_it_is_the_mean_over_ranks(operation, algorithm):
    for n, numel in itertools.product((1, 2, 5, 8), (0, 3, 10, 1001)):
        exact = [asked(operation, algorithm, n, numel, rank) for rank in range(n)]
        mean = asked(operation, algorithm, n, numel)
        # Which rank keeps the longer chunk changes what a root and an all-to-all send in all.
        slack = 4 if operation in ("gather", "scatter", "all_to_all") else 0
        sent = sum(each.sent_bytes for each in exact) / n
        assert sent == pytest.approx(mean.sent_bytes, abs=slack)
        assert sum(each.messages for each in exact) == pytest.approx(n * mean.messages)
        assert {each.steps for each in exact} == {mean.steps}


def test_the_mean_of_uneven_splits():
    mean = calc.collective("all_to_all", "pairwise", 3, splits=SPLITS, itemsize=10)
    exact = [
        calc.collective("all_to_all", "pairwise", 3, splits=SPLITS, itemsize=10, rank=rank)
        for rank in range(3)
    ]
    assert mean.sent_bytes == pytest.approx(sum(each.sent_bytes for each in exact) / 3)
    assert mean.nbytes == pytest.approx(10 * 40 / 3)


def test_it_says_what_it_is():
    text = repr(calc.collective("all_reduce", "ring", 4, 40, rank=0))
    assert all(part in text for part in ("ring", "40 B", "56 B", "rank 0", "6 messages"))


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("gossip", "ring", 4), {}, "operation='gossip'.*all_reduce, reduce_scatter"),
        (("all_reduce", "star", 4), {}, "algorithm='star'.*ring"),
        (("reduce_scatter", "tree", 4), {}, "algorithm='tree'"),
        (("all_reduce", "ring", 2, 8), {"itemsize": 0}, "itemsize=0"),
        (("all_reduce", "ring", 2, 6), {"rank": 0}, "nbytes=6: .*itemsize=4"),
        (("all_reduce", "ring", 2, 8), {"rank": 2}, "rank=2"),
        (("broadcast", "binomial", 4, 8), {"root": 4}, "root=4"),
        (("all_reduce", "tree", 4, 8), {"root": 1}, "root=1"),
        (("all_gather", "ring", 4, 8), {"block_bytes": 4}, "block_bytes=4"),
        (("all_reduce", "tree", 2, 8), {"block_bytes": 0.5}, "block_bytes=0.5"),
        (("broadcast", "ring", 2, 8), {"block_bytes": 0}, "block_bytes=0"),
        (("all_reduce", "ring", 8), {"ranks_per_host": 3}, "ranks_per_host=3 .* 1, 2, 4 or 8"),
        (("all_reduce", "hierarchical", 8), {"ranks_per_host": 0}, "ranks_per_host=0"),
        (("all_reduce", "ring", 8), {"rings": 2}, "rings=2.*give ranks_per_host"),
        (("all_reduce", "ring", 8), {"ranks_per_host": 4, "rings": 5}, "rings=5.*give 1 to 4"),
        (("all_reduce", "ring", 8), {"ranks_per_host": 4, "rings": 0}, "rings=0"),
        (("all_reduce", "tree", 8), {"rings": 2}, "rings=2"),
        (("all_to_all", "pairwise", 3), {"splits": [[1, 2], [3]]}, r"splits=.*each of 3 ranks"),
        (("all_to_all", "pairwise", 2), {"splits": [[1, 2], [3]]}, r"splits\[1\]=\[3\]"),
        (("all_to_all", "pairwise", 2), {"splits": [[1, -2], [3, 4]]}, "numel=-2"),
    ],
)
def test_a_bad_input_is_named(arguments, options, says):
    with pytest.raises(ValueError, match=says):
        calc.collective(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("all_reduce", "ring", "four"), {}, "world_size='four'"),
        (("all_reduce", "hierarchical", 4), {}, "ranks_per_host=None"),
        (("all_to_all", "pairwise", 2), {"splits": 5}, "splits=5"),
    ],
)
def test_what_is_no_number_is_named(arguments, options, says):
    with pytest.raises(TypeError, match=says):
        calc.collective(*arguments, **options)


@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize(
    ("alpha", "beta", "says"),
    [(-1, 0, "alpha"), (0, -1, "beta"), (0, 360e9, "1 / 360e9")],
)
def test_a_bad_link_is_named(hosts, alpha, beta, says):
    ring = calc.collective("all_reduce", "ring", 4, 8, ranks_per_host=2 if hosts else None)
    link = ((0, alpha), (0, beta)) if hosts else (alpha, beta)
    with pytest.raises(ValueError, match=says):
        ring.seconds(*link)

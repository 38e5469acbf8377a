"""Boosted trees on row shards against one process, bit by bit, and against trees by loops."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from labkit import RankError, run
from labkit.trees import BoostingConfig, SparseRows, train
from labkit.trees.boosting import gradients

# 301 rows and 7 features divide by none of 2, 3 and 4. Unequal shards, two of them empty.
NUM_ROWS, NUM_FEATURES = 301, 7
SHARDS = ([301], [0, 301], [100, 1, 200], [0, 150, 151, 0])
CONFIG = BoostingConfig(num_trees=3, max_depth=4, num_bins=16, gamma=0.01, min_child_weight=2.0)
LOSSES = {"squared_error": CONFIG, "logistic": replace(CONFIG, loss="logistic")}


def data(missing=0.2):
    """Rows with nan, a column of few values, one that is copied, and labels 0 and 1."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(NUM_ROWS, NUM_FEATURES, generator=generator)
    labels = ((rows[:, 0] * rows[:, 1] + rows[:, 2]) > 0).float()
    rows[:, 3] = rows[:, 3].round()
    rows[torch.rand(rows.shape, generator=generator) < missing] = torch.nan
    rows[:, 5] = -rows[:, 2]  # ties with column 2, in mirrored order
    return rows, labels


def sparse(rows):
    present = ~rows.isnan()
    counts = present.sum(1)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return SparseRows(starts, present.nonzero()[:, 1], rows[present], rows.shape[1])


def train_shard(world, sizes, configs, edges, is_sparse=False, missing=0.2):
    """The boosters of each config on this rank's rows."""
    rows, labels = (each.split(sizes)[world.rank] for each in data(missing))
    rows = sparse(rows) if is_sparse else rows
    return [train(world, rows, labels, config, edges) for config in configs]


@pytest.fixture(scope="module")
def alone():
    """One process with all rows, by loss."""
    boosters = run(train_shard, 1, (SHARDS[0], list(LOSSES.values()), None)).values[0]
    return dict(zip(LOSSES, boosters))


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "column blocks"])
@pytest.mark.parametrize("sizes", SHARDS, ids=len)
def test_trees_equal_those_of_one_process_in_every_bit(alone, sizes, is_sparse):
    for loss, config in LOSSES.items():
        ways = [replace(config, merge=merge) for merge in ("all_reduce", "reduce_scatter")]
        result = run(train_shard, len(sizes), (sizes, ways, alone[loss].edges_FE, is_sparse))
        for of_rank in result.values:
            assert [booster.equal_trees(alone[loss]) for booster in of_rank] == [3, 3]
            assert all(booster.base == alone[loss].base for booster in of_rank)


@pytest.mark.parametrize("sizes", SHARDS[1:], ids=len)
def test_edges_of_unpruned_summaries_are_those_of_all_rows(alone, sizes):
    (booster,) = run(train_shard, len(sizes), (sizes, [CONFIG], None)).values[0]
    assert torch.equal(booster.edges_FE, alone["squared_error"].edges_FE)
    assert booster.equal_trees(alone["squared_error"]) == 3


@pytest.mark.parametrize("sizes", SHARDS, ids=len)
def test_all_ranks_sketch_the_same_edges_for_each_tree(sizes):
    config = replace(LOSSES["logistic"], sketch="each_tree", sketch_size=24)
    boosters = [each for (each,) in run(train_shard, len(sizes), (sizes, [config], None)).values]
    assert all(each.equal_trees(boosters[0]) == 3 for each in boosters)
    assert all(torch.equal(each.edges_FE, boosters[0].edges_FE) for each in boosters)


def by_loops(rows, labels, config, booster):
    """The trees of one process, from fractions: [(feature, threshold, default left, value)]."""
    margins = [booster.base] * len(labels)
    trees = []
    for _ in range(config.num_trees):
        pairs = gradients(torch.tensor(margins, dtype=torch.float64), labels.double(), config.loss)
        pairs = [(Fraction(g), Fraction(h)) for g, h in pairs.tolist()]
        nodes, level, depth = [], [list(range(len(labels)))], 0
        while level:
            below = []
            for members in level:
                split = best_split(rows, pairs, members, config, booster.edges_FE)
                if depth == config.max_depth or split is None:
                    g, h = sums(pairs, members)
                    value = -float(g) / (float(h) + config.lam) * config.learning_rate
                    nodes.append((0, 0.0, False, value))
                    for row in members:
                        margins[row] += value
                else:
                    nodes.append((*split, 0.0))
                    left = [row for row in members if goes_left(rows[row], split)]
                    below += [left, [row for row in members if row not in set(left)]]
            level, depth = below, depth + 1
        trees.append(nodes)
    return trees, margins


def sums(pairs, members):
    return sum(pairs[row][0] for row in members), sum(pairs[row][1] for row in members)


def goes_left(row, split):
    feature, threshold, default_left = split
    x = row[feature].item()
    return default_left if x != x else x < threshold


def best_split(rows, pairs, members, config, edges):
    """Try every edge of every feature on both sides, and keep the first of the largest gains."""

    def score(g, h):
        return float(g) ** 2 / (float(h) + config.lam)

    best, kept = 1e-12, None
    all_g, all_h = sums(pairs, members)
    for feature in range(rows.shape[1]):
        for threshold in [*edges[feature].tolist(), torch.inf]:
            for default_left in (True, False):
                split = (feature, threshold, default_left)
                g, h = sums(pairs, [row for row in members if goes_left(rows[row], split)])
                if min(h, all_h - h) < max(config.min_child_weight, 1e-300):
                    continue
                gain = score(g, h) + score(all_g - g, all_h - h) - score(all_g, all_h)
                if gain / 2 - config.gamma > best + 1e-12:
                    best, kept = gain / 2 - config.gamma, split
    return kept


@pytest.mark.parametrize("loss", LOSSES)
def test_trees_are_those_of_plain_loops(loss):
    config = replace(LOSSES[loss], num_trees=2, max_depth=3, num_bins=5)
    (booster,) = run(train_shard, 2, ([100, 201], [config], None)).values[1]
    rows, labels = data()
    trees, margins = by_loops(rows, labels, config, booster)
    for tree, nodes in zip(booster.trees, trees, strict=True):
        feature, threshold, default_left, value = map(list, zip(*nodes))
        assert tree.feature.tolist() == feature
        assert tree.threshold.tolist() == threshold
        assert tree.default_left.tolist() == default_left
        assert tree.value.tolist() == pytest.approx(value, abs=1e-9)
    assert {0, 1, 2} & set(booster.trees[0].feature.tolist())
    assert booster.margins(rows).tolist() == pytest.approx(margins, abs=1e-9)
    assert torch.equal(booster.margins(sparse(rows)), booster.margins(rows))


def mirrored(world, config, num_seeds):
    """Two features, the second the first with another sign: every split has a twin."""
    found = []
    for seed in range(num_seeds):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 4, (40,), generator=generator).float()
        labels = torch.randint(0, 10, (40,), generator=generator) / 10
        rows = torch.stack([x, -x], dim=1)
        rows, labels = (each.tensor_split(world.size)[world.rank] for each in (rows, labels))
        found.append(train(world, rows, labels, config).trees[0])
    return found


def test_a_floating_point_sum_breaks_a_tie_and_fixed_point_does_not():
    stump = BoostingConfig(num_trees=1, max_depth=1, lam=0.0)

    def chosen(config, world_size):
        trees = run(mirrored, world_size, (config, 12)).values[0]
        return [tree.feature[0].item() for tree in trees], [tree.value for tree in trees]

    features, values = chosen(stump, 1)
    features_of_4, values_of_4 = chosen(stump, 4)
    assert features == features_of_4 == [0] * 12  # the first of equal gains
    assert all(map(torch.equal, values, values_of_4))
    assert chosen(replace(stump, exact=False), 1)[0] != chosen(replace(stump, exact=False), 4)[0]


def refused(world, rows, labels, config):
    train(world, rows, labels, config)


@pytest.mark.parametrize(
    ("rows", "labels", "loss", "words"),
    [
        (torch.tensor([[torch.inf]]), torch.ones(1), "logistic", "rows have infinite values"),
        (torch.ones(2, 1), torch.ones(3), "logistic", r"shape \(3,\): give 2"),
        (torch.ones(1, 1), torch.tensor([torch.nan]), "squared_error", "labels have nan"),
        (torch.ones(1, 1), torch.tensor([2.0]), "logistic", "from 2 to 2: .* needs 0 to 1"),
        (torch.ones(0, 1), torch.ones(0), "squared_error", "no rank has a row"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_refused(rows, labels, loss, words):
    with pytest.raises(RankError, match=words):
        run(refused, 1, (rows, labels, BoostingConfig(loss=loss)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "hinge"}, "loss='hinge': give one of squared_error, logistic"),
        ({"merge": "gather"}, "merge='gather': give one of all_reduce"),
        ({"num_bins": 1}, "num_bins=1: 2 to 32,766"),
        ({"lam": -1.0}, "lam=-1.0: 0 or more"),
        ({"max_depth": 0}, "max_depth=0: 1 to 16"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        BoostingConfig(**settings)


def test_sparse_rows_that_do_not_belong_together_are_refused():
    starts, values = torch.tensor([0, 1]), torch.ones(1)
    for features, num_features, words in (
        (torch.tensor([0, 0]), 1, "2 features of 1 values"),
        (torch.tensor([3]), 3, "features: 0 to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            SparseRows(starts, features, values, num_features)
    with pytest.raises(ValueError, match="starts: ascending"):
        SparseRows(torch.tensor([0, 2]), torch.tensor([0]), values, 1)


def test_a_row_has_the_same_gradient_wherever_its_shard_ends():
    """torch.sigmoid computes the last numbers of a tensor by another program than the rest."""
    margins = torch.randn(1001, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.zeros(1001, dtype=torch.float64)
    whole = gradients(margins, labels, "logistic")
    for end in range(1, 1001, 7):
        of_shard = gradients(margins[end // 2 : end], labels[end // 2 : end], "logistic")
        assert torch.equal(of_shard, whole[end // 2 : end])

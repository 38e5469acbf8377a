"""Boosted trees beside xgboost's hist, with the same settings: accuracy, seconds, bytes, equality.

Written down before measuring:

    data        100,000 generated rows with 28 features, of which 10% are missing; of scikit-learn
                breast cancer, digits (8 or not), diabetes; a quarter of the rows is for testing
    settings    50 trees, depth 6, learning rate 0.3, lambda 1, 256 bins, one thread per rank
    accuracy    share of right test rows; of diabetes 1 - squared error / variance. The lab's may be
                a percentage point lower than xgboost's at most
    equality    the lab's trees on 2 and 4 ranks, by both merges, with the edges of one process;
                xgboost's trees on two workers beside its trees on one, by its own collective
    seconds     training with the sketch, alternating, medians; a ratio, which decides nothing
    bytes       what a rank sends for a tree, from the journal, beside labkit.calc

    python benchmarks/trees.py            everything, some minutes
    python benchmarks/trees.py --quick    10,000 rows and 5 trees
"""

import importlib.util
import re
import statistics
import sys
from dataclasses import replace

import torch
from measure import alternate_in_rounds, command_line, machine
from torch import Tensor

import labkit
from labkit import calc
from labkit.trees import BoostingConfig, train
from labkit.trees.histogram import MERGES

NUM_FEATURES = 28
Data = tuple[Tensor, Tensor]


def generated(num_rows: int) -> Data:
    """Return rows and labels 0 and 1, some of them wrong on purpose."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(num_rows, NUM_FEATURES, generator=generator)
    score = rows[:, 0] * rows[:, 1] + rows[:, 2] + rows[:, 3] * rows[:, 4] / 2
    labels = (score + 0.5 * torch.randn(num_rows, generator=generator) > 0).float()
    rows[torch.rand(rows.shape, generator=generator) < 0.1] = torch.nan
    return rows, labels


def shipped(name: str) -> Data:
    """Return a data set of scikit-learn, its rows in random order."""
    data = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")()
    rows, labels = (torch.tensor(each, dtype=torch.float32) for each in (data.data, data.target))
    if name == "digits":
        labels = (labels == 8).float()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return rows[order], labels[order]


def halves(data: Data) -> tuple[Data, Data]:
    """Return the rows to train on and those to test on."""
    cut = len(data[1]) * 3 // 4
    return (data[0][:cut], data[1][:cut]), (data[0][cut:], data[1][cut:])


def shard(world: labkit.Group, data: Data) -> Data:
    """Return this rank's rows and labels."""
    rows, labels = (each.tensor_split(world.size)[world.rank] for each in data)
    return rows, labels


def lab(world: labkit.Group, data: Data, config: BoostingConfig, edges: Tensor | None = None):
    """Train the lab's trees on this rank's shard."""
    return train(world, *shard(world, data), config, edges)


def peer(world: labkit.Group, data: Data, config: BoostingConfig):
    """Train xgboost's trees on this rank's shard, over its own collective if there are several."""
    xgboost = importlib.import_module("xgboost")
    tracker_of = importlib.import_module("xgboost.tracker").RabitTracker
    settings = {
        "objective": "binary:logistic" if config.loss == "logistic" else "reg:squarederror",
        "tree_method": "hist",
        "eta": config.learning_rate,
        "max_depth": config.max_depth,
        "max_bin": config.num_bins,
        "nthread": 1,
    }
    rows, labels = shard(world, data)

    def booster():
        matrix = xgboost.DMatrix(rows.numpy(), labels.numpy(), nthread=1)
        return xgboost.train(settings, matrix, config.num_trees)

    if world.size == 1:
        return booster()
    port = torch.zeros(1, dtype=torch.int64)
    if world.rank == 0:
        tracker = tracker_of(n_workers=world.size, host_ip="127.0.0.1")
        tracker.start()
        port[0] = int(tracker.worker_args()["dmlc_tracker_port"])
    port = int(world.broadcast(port))
    where = {"dmlc_tracker_uri": "127.0.0.1", "dmlc_tracker_port": port}
    with xgboost.collective.CommunicatorContext(**where, dmlc_task_id=str(world.rank)):
        trained = booster()
    world.barrier()  # the tracker of rank 0 serves the others until they have left
    return trained


def peer_trees(world: labkit.Group, sets: list[Data], config: BoostingConfig) -> list[list[str]]:
    """Return for each set xgboost's trees as text."""
    return [peer(world, data, config).get_dump(dump_format="json") for data in sets]


def num_equal(one: list[str], two: list[str]) -> int:
    """Count the trees before the first that differs."""
    return [*(a == b for a, b in zip(one, two, strict=True)), False].index(False)


def both_scores(world: labkit.Group, sets: list[tuple[Data, BoostingConfig]]):
    """Return for each set the test scores of the lab and of xgboost, on one rank."""
    xgboost, found = importlib.import_module("xgboost"), []
    for data, config in sets:
        training, (rows, labels) = halves(data)
        margins = lab(world, training, config).margins(rows)
        matrix = xgboost.DMatrix(rows.numpy())
        theirs = peer(world, training, config).predict(matrix, output_margin=True)
        both = (margins, torch.tensor(theirs))
        found.append([score(each, labels, config.loss) for each in both])
    return found


def score(margins: Tensor, labels: Tensor, loss: str) -> float:
    """Return the share of right rows, or 1 - squared error / variance."""
    if loss == "logistic":
        return ((margins > 0) == (labels > 0)).double().mean().item()
    return 1 - ((margins - labels).square().mean() / labels.var(correction=0)).item()


def seconds(world: labkit.Group, data: Data, config: BoostingConfig, repetitions: int, has_peer):
    """Return the seconds of each round, by candidate."""
    candidates = {"lab": lambda: lab(world, data, config)}
    if has_peer:
        candidates["xgboost"] = lambda: peer(world, data, config)
    return alternate_in_rounds(world, candidates, repetitions)


def equality_and_bytes(data: Data, config: BoostingConfig) -> bool:
    """Print both; return whether all trees are equal and all bytes are those of calc."""
    alone, good = labkit.run(lab, 1, (data, config)).values[0], True
    print("the lab's trees, with the edges of one process; bytes that rank 0 sends for a tree")
    for size in (2, 4):
        for merge in MERGES:
            result = labkit.run(lab, size, (data, replace(config, merge=merge), alone.edges_FE))
            equal = min(each.equal_trees(alone) for each in result.values)
            sent = result.traffic[0].sent_bytes
            searching = [tree.level_sizes()[: config.max_depth] for tree in alone.trees]
            expected = sum(
                float(calc.boosting_level_bytes(merge, size, NUM_FEATURES, 256, num, rank=0))
                for num in sum(searching, [])
            )
            # Besides: rows, units and sums of the root, in three small all-reduces for each tree.
            small = sum(
                each.sent_bytes
                for kind, each in result.traffic[0].by_operation.items()
                if kind == "all_reduce"
            )
            is_right = sent - small == expected and equal == config.num_trees
            good &= is_right
            print(
                f"  {size} ranks  {merge:<15}{equal:>3} of {config.num_trees} trees equal "
                f"{calc.bytes_text(sent / config.num_trees):>10}   "
                f"calc {calc.bytes_text(expected / config.num_trees)}   "
                f"{'as calc says' if is_right else 'WRONG'}"
            )
    return good


def main() -> None:
    """Print all tables. Exit status 1: trees or bytes are not equal, or accuracy is lower."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="10,000 rows and 5 trees")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    config = BoostingConfig(loss="logistic", num_trees=5 if quick else 50)
    data = generated(10_000 if quick else 100_000)
    print(f"{len(data[1]):,} rows, {NUM_FEATURES} features, {config.num_trees} trees. {machine()}")
    has_peer = importlib.util.find_spec("xgboost") and importlib.util.find_spec("sklearn")
    good = equality_and_bytes(data, replace(config, num_trees=3))
    if has_peer:
        few, some = replace(config, num_trees=3), generated(20_000)
        # Rounded to 0.1 a feature has fewer values than bins: each gets its own, on any worker.
        rounded = (10 * some[0]).round() / 10, some[1]
        dumps = [labkit.run(peer_trees, n, ([some, rounded], few)).values[0] for n in (1, 2)]
        for name, one, two in zip(("as they are", "rounded to 0.1"), *dumps, strict=True):
            splits = [
                [re.sub(r'"leaf": [^ ]+', "", tree) for tree in trees] for trees in (one, two)
            ]
            print(
                f"xgboost on 2 workers, rows {name}: {num_equal(one, two)} of {few.num_trees} "
                f"trees equal those on one, {num_equal(*splits)} in their splits"
            )
        print("test score          lab  xgboost")
        sets = {"generated": (data, config)}
        for name in ("breast_cancer", "digits", "diabetes"):
            loss = "squared_error" if name == "diabetes" else "logistic"
            sets[name] = shipped(name), replace(config, loss=loss)
        scores = labkit.run(both_scores, 1, (list(sets.values()),), timeout=900).values[0]
        for name, (ours, theirs) in zip(sets, scores, strict=True):
            good &= ours > theirs - 0.01
            print(
                f"  {name:<14}{ours:>8.4f}{theirs:>9.4f}{'' if ours > theirs - 0.01 else '  LOW'}"
            )
    else:
        print("xgboost not run: pip install 'labkit[peers]'")
    for size in (1, 2):
        arguments = (data, config, 1 if quick else 5, has_peer and size == 1)
        rounds = labkit.run(seconds, size, arguments, timeout=900).values[0]
        for name, times in rounds.items():
            print(
                f"{name:<8} on {size} rank{'s' * (size > 1)}: {statistics.median(times):6.2f} s "
                f"({min(times):.2f} to {max(times):.2f})"
            )
        if "xgboost" in rounds:
            ratios = [a / b for a, b in zip(rounds["lab"], rounds["xgboost"], strict=True)]
            print(
                f"lab / xgboost: {statistics.median(ratios):.1f} "
                f"({min(ratios):.1f} to {max(ratios):.1f})"
            )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

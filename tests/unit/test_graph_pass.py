"""Passes over graphs made by hand: which collectives are joined, and where they start and wait."""

import pytest
import torch
from torch.fx import Graph

from labkit.compiled import bucketed, collectives, events, overlapped
from labkit.compiled.graph import ALL_GATHER, REDUCE_SCATTER, WAIT, parameter_nodes

aten = torch.ops.aten
N = 3


class Made:
    """A graph whose nodes have the shapes of their results, and no numbers."""

    def __init__(self):
        self.graph = Graph()

    def call(self, target, *args):
        node = self.graph.call_function(target, args)
        node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda each: each.meta["val"]))
        return node

    def given(self, name, numel, dtype=torch.float32):
        node = self.graph.placeholder(name)
        node.meta["val"] = torch.empty(numel, dtype=dtype, device="meta")
        return node

    def sent(self, target, *args):
        return self.call(WAIT, self.call(target, *args, N, "0"))


def forward(shards, dtypes=()):
    """x + a, then + b, ...: each parameter is gathered where it is read."""
    made = Made()
    x = made.given("x", 1)
    given = [
        made.given(f"shard{number}", numel, dtype)
        for number, (numel, dtype) in enumerate(
            zip(shards, dtypes or [torch.float32] * len(shards), strict=True)
        )
    ]
    for shard in given:
        whole = made.sent(ALL_GATHER, shard)
        x = made.call(aten.mul.Tensor, x, made.call(aten.slice.Tensor, whole, 0, 0, 1))
    made.graph.output(x)
    return made.graph


def backward(gradients):
    """A gradient is computed, reduced, and divided by the number of ranks."""
    made = Made()
    found = []
    for number, numel in enumerate(gradients):
        x = made.given(f"x{number}", N * numel)
        own = made.sent(REDUCE_SCATTER, made.call(aten.neg.default, x), "sum")
        found.append(made.call(aten.div.Tensor, own, float(N)))
    made.graph.output(tuple(found))
    return made.graph


def short(graph):
    """G0 w0 c: starts, waits and operations, by number of the collective."""
    letters = {"all_gather": "G", "reduce_scatter": "R"}
    return " ".join(
        "c" * each.number if each.what == "compute" else
        f"{letters[each.kind] if each.what == 'start' else 'w'}{each.number}"
        for each in events(graph)
    )  # fmt: skip


def checked(graph):
    graph.lint()  # inputs come before what is computed from them
    return short(graph)


def test_as_traced_each_parameter_is_gathered_where_it_is_read():
    graph = forward([2, 3, 4])
    assert checked(graph) == "G0 w0 c G1 w1 c G2 w2 c"
    assert [each.nbytes for each in collectives(graph)] == [4 * N * numel for numel in (2, 3, 4)]


@pytest.mark.parametrize(
    ("bucket_bytes", "own"),
    [(1, [2, 3, 4, 5]), (60, [5, 4, 5]), (108, [9, 5]), (1000, [14])],
)
def test_a_bucket_is_filled_up_to_its_bytes_and_no_further(bucket_bytes, own):
    graph = forward([2, 3, 4, 5])
    bucketed(graph, bucket_bytes)
    checked(graph)
    assert [each.own_numel for each in collectives(graph)] == own


def test_a_bucket_has_one_dtype_even_if_another_lies_between():
    graph = forward([2, 3, 4], [torch.uint8, torch.float32, torch.uint8])
    bucketed(graph, 1000)
    checked(graph)
    sent = collectives(graph)
    assert [(each.own_numel, each.dtype) for each in sent] == [
        (6, torch.uint8),
        (3, torch.float32),
    ]


def test_a_bucket_of_gradients_starts_where_the_last_one_is_there():
    graph = backward([2, 3])
    assert checked(graph) == "c R0 w0 c" + "c R1 w1 c"
    bucketed(graph, 1000)
    assert checked(graph) == "ccc R0 w0 cc"  # two gradients, a cat; two divisions


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0, "G0 w0 c G1 w1 c G2 w2 c"),
        (1, "G0 G1 w0 c G2 w1 c w2 c"),
        (2, "G0 G1 G2 w0 c w1 c w2 c"),
        (None, "G0 G1 G2 w0 c w1 c w2 c"),
    ],
)
def test_gathers_start_so_many_buckets_ahead(ahead, expected):
    graph = forward([2, 3, 4])
    overlapped(graph, ahead)
    assert checked(graph) == expected


def test_a_wait_for_gradients_is_behind_the_next_reduction():
    graph = backward([2, 3, 4])
    overlapped(graph, behind=1)
    assert checked(graph) == "c R0 c R1 w0 c" + "c R2 w1 c w2 c"


def test_casts_of_shards_move_up_with_their_gather():
    made = Made()
    x, *shards = (made.given(f"given{number}", 1) for number in range(3))
    for shard in shards:
        cast = made.call(aten._to_copy.default, shard)
        x = made.call(aten.mul.Tensor, x, made.sent(ALL_GATHER, cast))
    made.graph.output(x)
    overlapped(made.graph, None)
    assert checked(made.graph) == "c G0 c G1 w0 c w1 c"


def test_parameter_nodes_end_at_the_first_activation():
    graph = forward([2])
    names = [node.target for node in graph.nodes if node in parameter_nodes(graph)]
    assert names == [ALL_GATHER, WAIT, aten.slice.Tensor]


@pytest.mark.parametrize(("bucket_bytes", "error"), [(0, ValueError), (1.5, TypeError)])
def test_bytes_of_a_bucket_are_a_positive_number(bucket_bytes, error):
    with pytest.raises(error, match="bucket_bytes"):
        bucketed(forward([2]), bucket_bytes)

"""Passes over a traced graph: fewer collectives (buckets), and collectives under the computation.

    traced       G0 w c  G1 w c  G2 w c  G3 w c          a gather for each parameter, all exposed
    bucketed     G01 w c c  G23 w c c                    fewer latencies, still exposed
    overlapped   G01  w G23 c c  w c c                   the next bucket travels during c

G starts an all-gather, w waits for it, c computes. Backward has reduce-scatters as well, R:

    traced       c R w  c R w  c R w  c R w
    bucketed     c c R w  c c R w
    overlapped   c c R  c c R w w                        a result is needed at the end only

Both passes change the order of nodes, and one function moves them: `reorder` sorts nodes by a
number and puts the inputs of each node before it. The result depends on the graph alone, and on no
clock. So equal graphs give equal orders on all ranks. Ranks with different orders would hang.

bucketed: a bucket is collectives of one kind, dtype and group, in their order, up to `bucket_bytes`
of the whole tensors. It may cross the borders of modules. Its all-gather starts where the first of
its parameters is read, its reduce-scatter where the last of its gradients is there.

    shards a (2,), b (3,)  ->  cat (5,)  ->  all-gather (n*5,)  ->  (n, 5)  ->  a (n, 2), b (n, 3)

The cuts at the end are copies, since a rank's part of `a` is not beside the next rank's. FSDP2 has
the same copy; flat parameters as in zero/unit.py have none.

overlapped: the all-gather of bucket j starts where bucket j - `ahead` is first used, and its wait
moves to its own first use. Memory: one bucket more for each step ahead. The wait for a
reduce-scatter moves behind the next `behind` of them, which holds their inputs in flight.

Paper: Zhang et al., "SimpleFSDP", arXiv:2411.00284, sections 4.1 and 4.2. The paper chooses
buckets by a cost model. torch's own passes are torch/_inductor/fx_passes/bucketing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from labkit import arguments
from labkit.compiled.graph import (
    ALL_GATHER,
    REDUCE_SCATTER,
    WAIT,
    Collective,
    collectives,
    parameter_nodes,
)

aten = torch.ops.aten


def bucketed(graph: Graph, bucket_bytes: int) -> None:
    """Join collectives of one kind, dtype and group, in place.

    bucket_bytes: the most bytes of whole tensors in a bucket; a larger one is a bucket by itself.
    """
    arguments.whole("bucket_bytes", bucket_bytes, "1 or more bytes")
    place = {node: float(number) for number, node in enumerate(graph.nodes)}
    sent, results = collectives(graph), []
    for bucket in _buckets([each for each in sent if each.kind == "all_gather"], bucket_bytes):
        _join_gathers(graph, bucket)
    for bucket in _buckets([each for each in sent if each.kind == "reduce_scatter"], bucket_bytes):
        results.append(_join_scatters(graph, bucket))
    numbers = _numbers(graph, place)
    for result in results:  # its users may stand before it
        for user in result.users:
            _move_later(user, numbers[result], numbers)
    reorder(graph, numbers)


def _buckets(sent: Sequence[Collective], bucket_bytes: int) -> list[list[Collective]]:
    """Return the buckets with more than one collective."""
    buckets: list[list[Collective]] = []
    filling: dict[object, list[Collective]] = {}
    for each in sent:
        alike = each.group, each.dtype
        bucket = filling.get(alike, [])
        if not bucket or sum(b.nbytes for b in bucket) + each.nbytes > bucket_bytes:
            bucket = filling[alike] = []
            buckets.append(bucket)
        bucket.append(each)
    return [bucket for bucket in buckets if len(bucket) > 1]


def _join_gathers(graph: Graph, bucket: Sequence[Collective]) -> None:
    """Replace the gathers by one, at the place of the first."""
    name, n, _ = bucket[0].group
    lengths = [each.own_numel for each in bucket]
    with graph.inserting_before(bucket[0].start):
        own = _call(graph, aten.cat.default, [each.start.args[0] for each in bucket])
        whole = _call(graph, WAIT, _call(graph, ALL_GATHER, own, n, name))
        rows = _call(graph, aten.view.default, whole, [n, sum(lengths)])
        parts = [
            _call(graph, aten.reshape.default, part, [-1])
            for part in _columns(graph, rows, lengths)
        ]
    _replace(graph, bucket, parts)


def _join_scatters(graph: Graph, bucket: Sequence[Collective]) -> Node:
    """Replace the reduce-scatters by one, at the place of the last, and return its wait."""
    name, n, reduction = bucket[0].group
    lengths = [each.own_numel for each in bucket]
    with graph.inserting_before(bucket[-1].start):
        rows = [_call(graph, aten.view.default, each.start.args[0], [n, -1]) for each in bucket]
        flat = _call(graph, aten.reshape.default, _call(graph, aten.cat.default, rows, 1), [-1])
        own = _call(graph, WAIT, _call(graph, REDUCE_SCATTER, flat, reduction, n, name))
        parts = _columns(graph, own, lengths)
    _replace(graph, bucket, parts)
    return own


def _replace(graph: Graph, bucket: Sequence[Collective], parts: Sequence[Node]) -> None:
    for each, part in zip(bucket, parts, strict=True):
        each.wait.replace_all_uses_with(part)
        graph.erase_node(each.wait)
        graph.erase_node(each.start)


def _columns(graph: Graph, x: Node, lengths: Sequence[int]) -> list[Node]:
    """Cut the last dim into parts, which are views."""
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [
        _call(graph, aten.slice.Tensor, x, -1, end - length, end)
        for length, end in zip(lengths, ends, strict=True)
    ]


def _call(graph: Graph, target: Callable[..., Any], *args: Any) -> Node:
    """Add an operation, and the tensor that it returns as `meta["val"]`, without computing it."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*map_arg(args, lambda each: each.meta["val"]))
    return node


def _numbers(graph: Graph, place: Mapping[Node, float]) -> dict[Node, float]:
    """Number new nodes like the old node behind them."""
    numbers: dict[Node, float] = {}
    following = float("inf")
    for node in reversed(graph.nodes):
        following = numbers[node] = place.get(node, following)
    return numbers


def overlapped(graph: Graph, ahead: int | None = 1, behind: int = 1) -> None:
    """Start all-gathers earlier and wait for collectives later, in place.

    ahead: how many gathers are in flight or whole before they are used; 0: each starts at its first
    use; None: all start at once. behind: how many more reduce-scatters start before one is waited
    for.
    """
    if ahead is not None:
        arguments.whole("ahead", ahead, "0 or more buckets, or None for all", least=0)
    order = {node: float(number) for number, node in enumerate(graph.nodes)}
    numbers = dict(order)
    sent = collectives(graph)
    gathers = [each for each in sent if each.kind == "all_gather"]
    of_parameters = parameter_nodes(graph)
    uses = [_first_use(each.wait, of_parameters, order) for each in gathers]
    for j, each in enumerate(gathers):
        numbers[each.wait] = uses[j] - 0.5
        before = j - ahead if ahead is not None else -1
        numbers[each.start] = (uses[before] if before >= 0 else 0) - 0.75
    for node in of_parameters - {node for each in gathers for node in (each.start, each.wait)}:
        numbers[node] = _first_use(node, of_parameters, order) - 0.25
    scatters = [each for each in sent if each.kind == "reduce_scatter"]
    for j, each in enumerate(scatters):
        after = j + behind
        end = order[scatters[after].start] + 0.5 if after < len(scatters) else len(order)
        _move_later(each.wait, end, numbers)
    reorder(graph, numbers)


def _first_use(node: Node, of_parameters: set[Node], order: Mapping[Node, float]) -> float:
    """Return the number of the first node that uses a parameter together with something else."""
    uses = (
        _first_use(user, of_parameters, order) if user in of_parameters else order[user]
        for user in node.users
    )
    return min(uses, default=len(order))


def _move_later(node: Node, number: float, numbers: dict[Node, float]) -> None:
    """Move a node, and all that is computed from it."""
    if number > numbers[node]:
        numbers[node] = number
        for user in node.users:
            _move_later(user, number, numbers)


def reorder(graph: Graph, numbers: Mapping[Node, float]) -> None:
    """Sort the nodes by number, stably; the inputs of each come before it, whatever theirs."""
    placed: dict[Node, None] = {}

    def place(node: Node) -> None:
        for needed in node.all_input_nodes:
            if needed not in placed:
                place(needed)
        placed[node] = None

    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    for node in [*inputs, *sorted(graph.nodes, key=lambda each: numbers[each])]:
        if node not in placed and node is not output:
            place(node)
    for node in placed:
        output.prepend(node)

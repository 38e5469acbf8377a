"""Read a traced graph: its collectives in their order, and the nodes that are parameters.

    primals_3 ---> all_gather_into_tensor ---> wait_tensor ---> slice ---> view ---> t ---> mm
    shard          starts                      must be done     whole parameter       x ---^

A collective is two nodes: one starts it, and `wait_tensor` needs its result. As traced, the wait
follows at once, so nothing overlaps. *Parameter nodes* are all from the all-gather up to the first
operation with an activation. They can be computed again from the shards, in backward, and they can
be moved as far up as the inputs are there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed._functional_collectives  # shapes of what collectives return
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node

Op = torch.ops._c10d_functional
ALL_GATHER = Op.all_gather_into_tensor.default
REDUCE_SCATTER = Op.reduce_scatter_tensor.default
WAIT = Op.wait_tensor.default
KINDS = {ALL_GATHER: "all_gather", REDUCE_SCATTER: "reduce_scatter"}


class Collective(NamedTuple):
    """A collective of a graph: the node that starts it, the node that waits for it."""

    kind: str
    """"all_gather" or "reduce_scatter"."""
    start: Node
    wait: Node
    group: tuple[str, int, str]
    """Name of the process group, its size, and the reduction; "" for an all-gather."""
    dtype: torch.dtype
    own_numel: int
    """Numbers of one rank's shard."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor. A ring sends (n-1)/n of them from each rank."""
        return self.own_numel * self.group[1] * self.dtype.itemsize


def collectives(graph: Graph) -> list[Collective]:
    """Return all-gathers and reduce-scatters in the order in which they start."""
    found = []
    for node in graph.nodes:
        kind = KINDS.get(node.target) if node.op == "call_function" else None
        if kind is None:
            continue
        x: Tensor = node.args[0].meta["val"]
        *rest, num_ranks, name = node.args[1:]
        own = x.numel() // (1 if kind == "all_gather" else num_ranks)
        (wait,) = node.users  # a tensor in flight has one reader
        group = (str(name), num_ranks, str(rest[0]) if rest else "")
        found.append(Collective(kind, node, wait, group, x.dtype, own))
    return found


def parameter_nodes(graph: Graph) -> set[Node]:
    """Return the nodes that are computed from all-gathers only, these included."""
    found: set[Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        is_derived = bool(inputs) and node.op != "output" and found.issuperset(inputs)
        if is_derived or node.target == ALL_GATHER:
            found.add(node)
    return found


class Event(NamedTuple):
    """A part of the order of a graph: a start, a wait, or operations between them."""

    what: str
    """"start", "wait" or "compute"."""
    kind: str
    number: int
    """Which collective, in the order of starts; for "compute" how many operations."""
    nbytes: int = 0


def events(graph: Graph) -> list[Event]:
    """Return what a rank does in which order; views and placeholders do not count."""
    sent = collectives(graph)
    starts = {each.start: number for number, each in enumerate(sent)}
    waits = {each.wait: number for number, each in enumerate(sent)}
    found: list[Event] = []
    for node in graph.nodes:
        if node in starts:
            each = sent[starts[node]]
            found.append(Event("start", each.kind, starts[node], each.nbytes))
        elif node in waits:
            found.append(Event("wait", sent[waits[node]].kind, waits[node]))
        elif is_computed(node):
            last = found[-1] if found else None
            if last is not None and last.what == "compute":
                found[-1] = last._replace(number=last.number + 1)
            else:
                found.append(Event("compute", "", 1))
    return found


def is_computed(node: Node) -> bool:
    """Return whether a node does work: it is an operation, and its result is no view."""
    return isinstance(node.target, OpOverload) and not node.target.is_view

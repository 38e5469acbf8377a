"""Disturbances that make ranks unequal, and classes of ranks that behave the same.

    Straggler(5, 1.5)             what rank 5 computes takes 1.5 times as long
    SlowNode(range(8, 16), 3)     messages of these ranks, and collectives over dp that they are in
    SlowLink(3, 4, 2)             messages between ranks 3 and 4, and collectives over dp of both
    Jitter(0.02)                  every operation of every rank: longer by 2% on average, at random

If several slow the same link, the largest factor counts; stragglers of one rank multiply.
Collectives over dp of every microbatch, with zero 2 and 3, take longer by the same factor, as far
as they were exposed. Those of tp, cp and ep are inside an operation and keep their time: a slow
link between two ranks that share nothing else is refused.

Ranks that behave the same are simulated once:

    cell      tp x cp x ep ranks of one stage and replica: collectives inside every operation keep
              them in step, so one of them represents all, and the slowest counts
    replica   pp cells (with ep: of ep neighbours of dp, which are in step, too)

Replicas meet only where gradients are reduced. So all replicas without a disturbance are one class,
and replicas with equal disturbances are another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from labkit import arguments
from labkit.calc.layout import Layout
from labkit.calc.pieces import Pieces


@dataclass(frozen=True)
class Straggler:
    """A rank that computes more slowly. ValueError for a factor under 1."""

    rank: int
    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The slow rank."""
        return (self.rank,)


@dataclass(frozen=True)
class SlowNode:
    """Ranks whose links to others are slower. ValueError for a factor under 1, or no rank."""

    ranks: tuple[int, ...]
    factor: float

    def __init__(self, ranks: Iterable[int], factor: float) -> None:
        _check_factor(factor)
        if isinstance(ranks, int):
            raise TypeError(f"ranks={ranks}: give all ranks of the node, such as range(8, 16)")
        object.__setattr__(self, "ranks", tuple(ranks))
        object.__setattr__(self, "factor", factor)
        if not self.ranks:
            raise ValueError("ranks=(): give the ranks of the slow node, such as range(8, 16)")


@dataclass(frozen=True)
class SlowLink:
    """A link between two ranks that is slower, both ways. ValueError for a factor under 1."""

    a: int
    b: int
    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        if self.a == self.b:
            raise ValueError(f"rank {self.a} has no link to itself: give two ranks")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The two ends of the link."""
        return (self.a, self.b)


@dataclass(frozen=True)
class Jitter:
    """An operation's computing takes 1 + share * X times as long, X exponential with mean 1.

    X is drawn for each operation on each rank. If n ranks wait for each other, the slowest counts:
    on average 1 + share * H_n, where H_n = 1 + 1/2 + ... + 1/n is about ln n + 0.58. Jitter of 2%
    adds 11% to an operation over 128 ranks.
    """

    share: float

    def __post_init__(self) -> None:
        arguments.number("share", self.share, "0 or more", least=0)


Disturbance = Straggler | SlowNode | SlowLink | Jitter


def _check_factor(factor: float) -> None:
    arguments.number("factor", factor, "times as long as the others; give 1 or more", least=1)


Factors = tuple[tuple[float, int], ...]
"""(factor, number of ranks of a cell with it), factor 1 included."""
Pair = tuple[int, int]


@dataclass(frozen=True)
class Behaviour:
    """Slowdowns of a replica. Replicas with equal ones take the same time."""

    slower: tuple[tuple[int, Factors], ...] = ()
    """(cell, factors of its ranks)."""
    links: tuple[tuple[Pair, float], ...] = ()
    """(two cells, the lower first; factor of messages between them)."""


@dataclass
class Collective:
    """Ranks of one stage and tp that reduce gradients together, over dp and cp."""

    link: float = 1.0
    slower: dict[int, float] = field(default_factory=dict)
    """rank -> factor."""


@dataclass(frozen=True)
class Behaviours:
    """The behaviours of all replicas of a layout, and of all collectives over dp."""

    layout: Layout
    of_replica: dict[int, Behaviour]
    """The replicas that are unlike the others, by number."""
    collectives: dict[tuple[int, int], Collective]
    """(pp, tp) -> collectives that are unlike the others."""
    jitter: float

    @property
    def num_replicas(self) -> int:
        """Replicas that go through the pipeline on their own: dp, and ep of them together."""
        return self.layout.dp // self.layout.joined_replicas

    @property
    def ranks_per_cell(self) -> int:
        """tp x cp x replicas that are joined."""
        return self.layout.tp * self.layout.cp * self.layout.joined_replicas

    def slowed(self, pieces: Pieces) -> Pieces:
        """Return the parts of a step with dp's exchanges in every microbatch slowed by the slowest
        link.

        All replicas wait for it, so it is not the behaviour of a single one.
        """
        links = [1.0] * self.layout.pp
        for (cell, _), collective in self.collectives.items():
            links[cell] = max(links[cell], collective.link)
        if not pieces.exchanged_s or max(links) == 1:
            return pieces
        more = [
            (
                (links[stage % self.layout.pp] - 1) * forth,
                (links[stage % self.layout.pp] - 1) * back,
            )
            for stage, (forth, back) in enumerate(pieces.exchanged_s)
        ]
        return replace(
            pieces,
            forward_s=tuple(s + f for s, (f, _) in zip(pieces.forward_s, more, strict=True)),
            backward_s=tuple(s + b for s, (_, b) in zip(pieces.backward_s, more, strict=True)),
        )

    def classes(self) -> dict[Behaviour, list[int]]:
        """Return the replicas by behaviour; one stands for all that have no disturbance."""
        found: dict[Behaviour, list[int]] = defaultdict(list)
        same = next((n for n in range(self.num_replicas) if n not in self.of_replica), None)
        if same is not None:
            found[Behaviour()].append(same)
        for replica, behaviour in sorted(self.of_replica.items()):
            found[behaviour].append(replica)
        return dict(found)

    def replica_of(self, rank: int) -> int:
        """Return the replica that a rank belongs to."""
        return self.layout.coordinates(rank)["dp"] // self.layout.joined_replicas


def behaviours(layout: Layout, disturbances: Sequence[Disturbance]) -> Behaviours:
    """Sort disturbances by the replicas, cells and links that they concern.

    TypeError for anything but a disturbance, ValueError for a rank outside the layout.
    """
    stragglers: dict[int, float] = {}
    nodes: dict[int, float] = {}
    links: dict[Pair, float] = {}
    jitter = 0.0
    for each in disturbances:
        if not isinstance(each, Disturbance):
            raise TypeError(f"{each!r:.60}: give a Straggler, a SlowNode, a SlowLink or Jitter")
        if isinstance(each, Jitter):
            jitter += each.share
            continue
        for rank in each.ranks:
            arguments.rank("rank", rank, layout.world_size)
        if isinstance(each, Straggler):
            stragglers[each.rank] = stragglers.get(each.rank, 1.0) * each.factor
        elif isinstance(each, SlowLink):
            _require_a_link_that_is_seen(layout, each)
            ends = (min(each.ranks), max(each.ranks))
            links[ends] = max(links.get(ends, 1.0), each.factor)
        else:
            nodes |= {rank: max(nodes.get(rank, 1.0), each.factor) for rank in each.ranks}
    slow_links = _links(layout, nodes, links)
    slow_cells = _cells(layout, stragglers)
    of_replica = {
        replica: Behaviour(
            tuple(sorted(slow_cells.get(replica, {}).items())),
            tuple(sorted(slow_links.get(replica, {}).items())),
        )
        for replica in slow_links.keys() | slow_cells.keys()
    }
    return Behaviours(layout, of_replica, _collectives(layout, stragglers, nodes, links), jitter)


def _require_a_link_that_is_seen(layout: Layout, link: SlowLink) -> None:
    """Raise ValueError if the link's traffic is inside operations, whose time stays the same."""
    one, other = layout.coordinates(link.a), layout.coordinates(link.b)
    differ = [axis for axis in layout.order if one[axis] != other[axis]]
    if differ == ["pp"] or set(differ) <= {"dp", "cp"}:
        return
    why = "exchange for tp, inside forward and backward, whose time is given as a whole"
    if len(differ) > 1:
        why = f"differ in {' and '.join(differ)}, and send each other nothing"
    raise ValueError(
        f"SlowLink({link.a}, {link.b}, {link.factor:g}): these ranks {why}. Give ranks of one pp "
        "or dp group, or longer forward_s and backward_s"
    )


def _cells(layout: Layout, stragglers: dict[int, float]) -> dict[int, dict[int, Factors]]:
    """Return replica -> cell -> the factors of its ranks."""
    slow: dict[tuple[int, int], list[float]] = defaultdict(list)
    for rank, factor in stragglers.items():
        at = layout.coordinates(rank)
        slow[at["dp"] // layout.joined_replicas, at["pp"]].append(factor)
    found: dict[int, dict[int, Factors]] = defaultdict(dict)
    per_cell = layout.tp * layout.cp * layout.joined_replicas
    for (replica, cell), factors in slow.items():
        counts = {factor: factors.count(factor) for factor in sorted(set(factors))}
        counts |= {1.0: per_cell - len(factors) + counts.get(1.0, 0)}
        found[replica][cell] = tuple((f, n) for f, n in sorted(counts.items()) if n)
    return found


def _links(
    layout: Layout, nodes: dict[int, float], links: dict[Pair, float]
) -> dict[int, dict[Pair, float]]:
    """Return replica -> two cells -> the factor of messages between them."""
    found: dict[int, dict[Pair, float]] = defaultdict(dict)

    def slow(replica: int, one: int, other: int, factor: float) -> None:
        pair = (min(one, other), max(one, other))
        found[replica][pair] = max(found[replica].get(pair, 1.0), factor)

    for rank, factor in nodes.items():
        at = layout.coordinates(rank)
        for other in {(at["pp"] + 1) % layout.pp, (at["pp"] - 1) % layout.pp} - {at["pp"]}:
            slow(at["dp"] // layout.joined_replicas, at["pp"], other, factor)
    for (a, b), factor in links.items():
        if b in layout.group("pp", a):
            at = layout.coordinates(a)
            slow(at["dp"] // layout.joined_replicas, at["pp"], layout.coordinates(b)["pp"], factor)
    return found


def _collectives(
    layout: Layout,
    stragglers: dict[int, float],
    nodes: dict[int, float],
    links: dict[Pair, float],
) -> dict[tuple[int, int], Collective]:
    def of(rank: int) -> tuple[int, int]:
        at = layout.coordinates(rank)
        return at["pp"], at["tp"]

    found: dict[tuple[int, int], Collective] = defaultdict(Collective)
    for rank, factor in stragglers.items():
        found[of(rank)].slower[rank] = factor
    for rank, factor in nodes.items():
        found[of(rank)].link = max(found[of(rank)].link, factor)
    for (a, b), factor in links.items():
        if of(a) == of(b):
            found[of(a)].link = max(found[of(a)].link, factor)
    return dict(found)

"""Who sent how much to whom: the sends of a run's journals, added up by source and destination."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.comm import Topology
from labkit.comm.operation import Timeline


@dataclass(frozen=True)
class Sent:
    """What went from one rank to another."""

    nbytes: int = 0
    messages: int = 0

    def __add__(self, other: "Sent") -> "Sent":
        """Both together."""
        return Sent(self.nbytes + other.nbytes, self.messages + other.messages)


def sent_between(timelines: Sequence[Timeline]) -> list[list[Sent]]:
    """[source][destination], global ranks: all messages that were posted, on any group.

    ValueError for a message to a rank whose timeline is not among them.
    """
    table = [[Sent() for _ in timelines] for _ in timelines]
    for source, timeline in enumerate(timelines):
        for operation in timeline.operations:
            if operation.kind == "send" and operation.peer is not None:
                if operation.peer >= len(timelines):
                    raise ValueError(
                        f"rank {source} sent to rank {operation.peer}, and there are timelines of "
                        f"{len(timelines)} ranks only; give those of all ranks, run.timeline"
                    )
                table[source][operation.peer] += Sent(operation.sent_bytes, 1)
    return table


def sent_by_the_library(timelines: Sequence[Timeline]) -> dict[str, int]:
    """Bytes of the backend's collectives, by kind: the journal knows how many, but not to whom."""
    nbytes: dict[str, int] = {}
    for timeline in timelines:
        for operation in timeline.operations:
            if operation.is_collective and operation.kind != "split" and operation.sent_bytes:
                nbytes[operation.kind] = nbytes.get(operation.kind, 0) + operation.sent_bytes
    return nbytes


def hosts_of(hosts: Any, num_ranks: int) -> list[list[int]]:
    """The ranks of each host: from a Topology or from lists of ranks; None: all on one host.

    Raises ValueError unless every rank is on exactly one host, TypeError for anything else.
    """
    if hosts is None:
        return [list(range(num_ranks))]
    if isinstance(hosts, Topology):
        found: list[list[int]] = [[] for _ in range(hosts.hosts)]
        for rank in range(hosts.world_size):
            found[hosts.host_of(rank)].append(rank)
    else:
        try:
            found = [list(host) for host in hosts]
        except TypeError:
            raise TypeError(
                f"hosts={hosts!r}: give the ranks of each host, such as [[0, 1], [2, 3]], or a "
                "labkit.Topology"
            ) from None
    ranks = [rank for host in found for rank in host]
    are_numbers = all(type(rank) is int for rank in ranks)  # True would be rank 1
    if not are_numbers or sorted(ranks) != list(range(num_ranks)) or not all(found):
        raise ValueError(
            f"hosts={found!r:.200}: each of ranks 0 to {num_ranks - 1} is on exactly one host, and "
            "a host has a rank; such as [[0, 1], [2, 3]]"
        )
    return found

"""Random inputs of an all-reduce over hosts: those of the ring, on every number of hosts."""

import random
from dataclasses import replace

from labkit.grade.evidence import Case, CaseEvidence
from labkit.grade.graders import ring_inputs


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """The cases of one world size: first those in which both tiers have work to do."""
    inner, outer = _ranks_per_host(world_size)
    drawn = {number: ring_inputs.random_cases(world_size, rng) for number in inner + outer}
    if world_size == 1:
        return [_on_hosts(case, 1) for case in drawn[1]]
    main = inner or outer
    others = drawn[main[0]][2:-1]
    return [
        *(_on_hosts(drawn[number][0], number) for number in main),  # sizes that divide
        *(_on_hosts(drawn[number][1], number) for number in main),  # and that do not
        *(_on_hosts(case, main[i % len(main)]) for i, case in enumerate(others)),
        *(_on_hosts(case, number) for number in outer if inner for case in drawn[number][:2]),
        *(_altered(drawn[number][-1], number, rng) for number in inner + outer),
    ]


def ranks_per_host_of(case: Case) -> int:
    """How many ranks share a host."""
    number: int = case.arguments[0][1]
    return number


def tiers_of(evidence: CaseEvidence) -> tuple[int, int]:
    """(ranks per host, number of hosts)"""
    ranks_per_host = ranks_per_host_of(evidence.case)
    return ranks_per_host, evidence.world_size // ranks_per_host


def most_messages(ranks_per_host: int, num_hosts: int) -> int:
    """A rank's messages: there and back in the ring of its host, and in that between hosts."""
    return 2 * (ranks_per_host - 1) + 2 * (num_hosts - 1)


def _ranks_per_host(world_size: int) -> tuple[list[int], list[int]]:
    """Those that make two tiers, and those that leave one: each rank alone, all on one host."""
    inner = [number for number in range(2, world_size) if world_size % number == 0]
    return inner, sorted({1, world_size})


def _on_hosts(case: Case, ranks_per_host: int) -> Case:
    num_hosts = len(case.arguments) // ranks_per_host
    hosts = "1 host" if num_hosts == 1 else f"{num_hosts} hosts"
    arguments = tuple((*each, ranks_per_host) for each in case.arguments)
    return replace(case, label=f"{hosts} of {ranks_per_host}, {case.label}", arguments=arguments)


def _altered(case: Case, ranks_per_host: int, rng: random.Random) -> Case:
    """Any one of the messages that a rank receives here; they are fewer than in a ring of all."""
    n = len(case.arguments)
    number = 1 + rng.randrange(most_messages(ranks_per_host, n // ranks_per_host))
    return _on_hosts(replace(case, altered=(rng.randrange(n), number)), ranks_per_host)

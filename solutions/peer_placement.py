"""Copies of each host's state in other hosts' memory: in which, and how likely is a loss?

An interviewer asks: "After a failure, 128 hosts read the checkpoint from storage, which takes ten
minutes. Instead, each host can keep a copy of its state in another host's memory. Whose? How do you
survive the loss of a rack? If two hosts fail at once, is a ring of neighbours better, or pairs?"

Each of n hosts has a state. m hosts have a copy of it in their memory: the host itself, and m - 1
others. The state is lost if all m of them fail at once. A host's group is the set of these m hosts.

Write two functions.

    place(racks, m)
        racks    racks[h] is the number of the rack in which host h is, any int. Hosts are numbered
                 from 0 to n - 1. No rack has more than n // m hosts, and there are m + n % m racks
                 or more
        m        2 or more
        returns  a list by host: the list of the m - 1 other hosts that have a copy of its state
    loss_probability(holders, k)
        holders  any placement, in the form that place returns, good or bad. The lists have one
                 other host or more; lengths may differ
        k        how many hosts fail at once, from 0 to n. All sets of k hosts are equally likely
        returns  a float: the probability that at least one state is lost, within 1e-9. n is at most
                 14, so you can try all sets

Contract of place
    racks    The m hosts that have a copy of a state are in m different racks
    even     Each host has copies of m - 1 states besides its own
    groups   There are as few different groups as possible, since each is a way to lose a state. If
             m divides n, there are n / m. Otherwise n = q m + r, and q - 1 + m + r are allowed:
             q - 1 groups whose hosts hold each other's states, and a ring of the m + r other hosts

Paper: Wang et al., "Gemini: fast failure recovery in distributed training with in-memory
checkpoints", SOSP 2023, section 4.
"""

from collections.abc import Sequence
from itertools import combinations


def place(racks: Sequence[int], m: int) -> list[list[int]]:
    """Return for each host the m - 1 other hosts that have a copy of its state."""
    ### BEGIN SOLUTION
    by_rack: dict[int, list[int]] = {}
    for host, rack in enumerate(racks):
        by_rack.setdefault(rack, []).append(host)
    ring = []
    if len(racks) % m:
        # Each host of the ring is of another rack, and the largest racks get smaller.
        largest = sorted(by_rack.values(), key=len, reverse=True)
        ring = [hosts.pop() for hosts in largest[: m + len(racks) % m]]
    rest = [host for hosts in by_rack.values() for host in hosts]
    # Rack after rack, hosts that are as many places apart as a rack may have are of two racks.
    num_groups = len(rest) // m
    holders: list[list[int]] = [[] for _ in racks]
    for first in range(num_groups):
        group = rest[first::num_groups]
        for host in group:
            holders[host] = [other for other in group if other != host]
    for at, host in enumerate(ring):
        holders[host] = [ring[(at + step) % len(ring)] for step in range(1, m)]
    return holders
    ### END SOLUTION


def loss_probability(holders: Sequence[Sequence[int]], k: int) -> float:
    """Return the probability that k failures at once lose at least one state."""
    ### BEGIN SOLUTION
    groups = {frozenset([host, *others]) for host, others in enumerate(holders)}
    losses = [set(failed) for failed in combinations(range(len(holders)), k)]
    num_fatal = sum(any(group <= failed for group in groups) for failed in losses)
    return num_fatal / len(losses)
    ### END SOLUTION

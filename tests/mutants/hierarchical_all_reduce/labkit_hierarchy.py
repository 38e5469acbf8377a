"""Mutant: calls labkit's own, with groups that it makes up.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from labkit.collectives import hierarchical_all_reduce as answer


def hierarchical_all_reduce(x, ranks_per_host, group):
    return answer(x, Tier(group, host_of, ranks_per_host), Tier(group, place_of, ranks_per_host))


def host_of(rank, ranks_per_host):
    return rank // ranks_per_host


def place_of(rank, ranks_per_host):
    return rank % ranks_per_host


class Tier:
    def __init__(self, group, color, ranks_per_host):
        self.group, self.device = group, group.device
        mine = color(group.rank, ranks_per_host)
        self.ranks = [r for r in range(group.size) if color(r, ranks_per_host) == mine]
        self.rank, self.size = self.ranks.index(group.rank), len(self.ranks)

    def isend(self, x, dst):
        return self.group.isend(x, self.ranks[dst])

    def irecv(self, x, src):
        return self.group.irecv(x, self.ranks[src])

"""Networks of two speeds: H hosts of L ranks each, fast links within a host, slow ones between."""

from typing import Generic, NamedTuple, TypeVar

from labkit.calc.traffic.checks import check_number, check_rank, check_ranks, is_whole, shown

Number = TypeVar("Number", int, float)


class Tiers(NamedTuple, Generic[Number]):
    """One number for the fast links, within a host, and one for the slow ones, between hosts."""

    fast: Number
    slow: Number

    @property
    def total(self) -> Number:
        """Both together."""
        return self.fast + self.slow


def num_hosts(world_size: int, ranks_per_host: int) -> int:
    """How many hosts `world_size` ranks are on. Raises ValueError unless all are equally full."""
    world_size = check_ranks(world_size)
    check_number(ranks_per_host, "ranks_per_host")
    if not is_whole(ranks_per_host) or ranks_per_host < 1 or world_size % ranks_per_host:
        raise ValueError(
            f"ranks_per_host={shown(ranks_per_host)} does not divide {world_size} ranks into "
            "equal hosts; give one of their divisors"
        )
    return world_size // int(ranks_per_host)


def place_of(rank: int, world_size: int, ranks_per_host: int) -> tuple[int, int]:
    """(host, number on that host) of a rank: neighbouring numbers share a host.

    place_of(5, world_size=8, ranks_per_host=4) == (1, 1)
    """
    num_hosts(world_size, ranks_per_host)
    return divmod(check_rank(rank, world_size), int(ranks_per_host))

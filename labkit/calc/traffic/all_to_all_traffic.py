"""Bytes, messages, steps and seconds of a pairwise all-to-all with blocks of any sizes.

rows[r][s] is how many rows rank r has for rank s; the diagonal stays where it is. In step k of
n - 1, rank r sends to r + k and receives from r - k, and goes on when both are done. An empty block
is no message. Nothing can be combined on the way, so a rank sends the rest of its row, and receives
the rest of its column:

    per rank              bytes                               messages
    sent                  sum of rows[r] but rows[r][r]       one per other block with bytes in it
    received              the same of column r                the same

With equal blocks that is (n-1)/n of a rank's tensor in n - 1 messages, and what crosses to other
hosts, of L ranks each, is (n-L)/n of it: the larger the cluster, the more of it is slow.

Paper: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 8(11), 1997.
"""

from collections.abc import Sequence

from labkit.calc.traffic.checks import (
    check_link,
    check_links,
    check_not_negative,
    check_rank,
    check_ranks,
    is_whole,
    shown,
)
from labkit.calc.traffic.tiers import Tiers, place_of


def pairwise_all_to_all_sent_bytes(send_rows: Sequence[int], row_bytes: int, rank: int) -> int:
    """Exact bytes that `rank` sends. send_rows[s]: its rows for rank s."""
    return sum(nbytes for _, nbytes in _messages(send_rows, row_bytes, rank))


def pairwise_all_to_all_messages(send_rows: Sequence[int], row_bytes: int, rank: int) -> int:
    """Messages that `rank` sends: to every other rank that it has bytes for."""
    return len(_messages(send_rows, row_bytes, rank))


def pairwise_all_to_all_tier_bytes(
    send_rows: Sequence[int], row_bytes: int, rank: int, ranks_per_host: int
) -> Tiers[int]:
    """Exact bytes that `rank` sends on its own host, and to other hosts."""
    _check_list(send_rows, "send_rows")
    n = len(send_rows)
    host, _ = place_of(rank, n, ranks_per_host)
    fast = slow = 0
    for peer, nbytes in _messages(send_rows, row_bytes, rank):
        if place_of(peer, n, ranks_per_host)[0] == host:
            fast += nbytes
        else:
            slow += nbytes
    return Tiers(fast, slow)


def pairwise_all_to_all_steps(world_size: int) -> int:
    """Steps one after the other: one for each other rank."""
    check_ranks(world_size)
    return world_size - 1


def pairwise_all_to_all_seconds(
    rows: Sequence[Sequence[int]], row_bytes: int, alpha: float, beta: float
) -> float:
    """Seconds until the last rank is done; every rank sends and receives at once.

    rows[r][s]: rows of rank r for rank s. A message starts when both sides have come to its step
    and takes alpha + bytes * beta. With equal blocks: `all_to_all_seconds`. With uneven ones the
    longest block of a step holds up two ranks, and in the next step those hold up theirs. (Where a
    sender goes on before its message has arrived, uneven exchanges take a little less.)
    """
    check_link(alpha, beta)
    _check_square(rows)
    return two_tier_all_to_all_seconds(rows, row_bytes, len(rows), (alpha, 0), (beta, 0))


def two_tier_all_to_all_seconds(
    rows: Sequence[Sequence[int]],
    row_bytes: int,
    ranks_per_host: int,
    alpha: tuple[float, float],
    beta: tuple[float, float],
    *,
    shared: bool = False,
) -> float:
    """`pairwise_all_to_all_seconds` with other links between hosts. alpha, beta: (fast, slow).

    shared: the ranks of a host send to other hosts over one link. Messages of one step that share
    it are then done together.
    """
    _check_square(rows)
    n = len(rows)
    check_links(alpha, beta)
    hosts = [place_of(rank, n, ranks_per_host)[0] for rank in range(n)]
    sent = [dict(_messages(rows[rank], row_bytes, rank)) for rank in range(n)]
    ready_s = [0.0] * n
    for step in range(1, n):
        done_s = list(ready_s)
        for rank, nbytes in enumerate(_link_bytes(sent, step, hosts, shared)):
            peer = (rank + step) % n
            if peer in sent[rank]:
                tier = hosts[rank] != hosts[peer]
                took_s = alpha[tier] + nbytes * beta[tier]
                end_s = max(ready_s[rank], ready_s[peer]) + took_s
                done_s[rank] = max(done_s[rank], end_s)
                done_s[peer] = max(done_s[peer], end_s)
        ready_s = done_s
    return max(ready_s)


def _link_bytes(
    sent: Sequence[dict[int, int]], step: int, hosts: Sequence[int], shared: bool
) -> list[int]:
    """By rank: the bytes that its link carries before its message of this step is through."""
    n = len(sent)
    peers = [(rank + step) % n for rank in range(n)]
    own = [sent[rank].get(peer, 0) for rank, peer in enumerate(peers)]
    crossing = [shared and hosts[rank] != hosts[peer] for rank, peer in enumerate(peers)]
    return [
        sum(own[other] for other in range(n) if crossing[other] and hosts[other] == hosts[rank])
        if crossing[rank]
        else own[rank]
        for rank in range(n)
    ]


def _check_square(rows: Sequence[Sequence[int]]) -> None:
    _check_list(rows, "rows")
    check_ranks(len(rows))
    for rank, row in enumerate(rows):
        _check_list(row, f"rows[{rank}]")
        if len(row) != len(rows):
            raise ValueError(
                f"rows[{rank}]={row} has {len(row)} numbers; give one for each of {len(rows)} ranks"
            )


def _check_list(rows: object, name: str) -> None:
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise TypeError(f"{name}={shown(rows)}: give a list with a number for each rank")


def _messages(send_rows: Sequence[int], row_bytes: int, rank: int) -> list[tuple[int, int]]:
    """(peer, bytes) of each message that `rank` sends."""
    _check_list(send_rows, "send_rows")
    check_rank(rank, len(send_rows))
    check_not_negative(row_bytes, "row_bytes")
    if not is_whole(row_bytes):
        raise ValueError(f"row_bytes={row_bytes}: bytes come whole; give a whole number, 0 or more")
    for number in send_rows:
        check_not_negative(number, "rows")
        if not is_whole(number):
            raise ValueError(f"rows={number}: rows come whole; give a whole number, 0 or more")
    sizes = [(peer, int(number) * row_bytes) for peer, number in enumerate(send_rows)]
    return [(peer, nbytes) for peer, nbytes in sizes if nbytes and peer != rank]

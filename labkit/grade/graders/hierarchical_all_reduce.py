"""Grade hierarchical_all_reduce: exact sums, and the bytes of fast and of slow links."""

import itertools
from collections.abc import Callable

import torch

from labkit.grade import grader
from labkit.grade.grader import ByRank, Case, Draw, Mistake, Observed, Outcome, patch
from labkit.grade.graders.ring_all_reduce import chunks, counts, in_place
from labkit.grade.outcome import Finding


def cases(n: int, draw: Draw) -> list[Case]:
    """Two tiers first, with sizes that come out even and others; then one tier."""
    divisors = [each for each in range(1, n + 1) if n % each == 0]
    two_tiers = divisors[1:-1] or divisors
    # Sums of the whole numbers are exact in float32, and not in float16 or bfloat16.
    big, huge = {"low": -9999, "high": 9999}, {"low": -(2**60), "high": 2**60}
    inputs = [
        *(("240 float32 elements", draw(240, **big), each) for each in two_tiers),
        ("247 float32 elements", draw(247, **big), two_tiers[-1]),
        ("a single number", draw(), two_tiers[0]),
        ("no elements", draw(0, 3), two_tiers[0]),
        (
            "int64, a transposed (7, 18)",
            draw(18, 7, dtype=torch.int64, permute=(1, 0), **huge),
            two_tiers[0],
        ),
        ("250 float64 elements", draw(250, dtype=torch.float64), 1),
        ("250 float64 elements", draw(250, dtype=torch.float64), n),
        ("251 float64 elements", draw(251, dtype=torch.float64), two_tiers[0]),
    ]
    return [
        Case(f"{n // each} host{'s' * (each < n)} of {each}, {label}", xs, each)
        for label, xs, each in inputs
    ]


def right(xs: ByRank, ranks_per_host: int) -> torch.Tensor:
    """The sum, on every rank."""
    return sum(xs[1:], xs[0].clone())


def messages(s: Observed) -> list[tuple[int, int, int]]:
    """(sender, receiver, bytes) of all messages that are not empty."""
    events = [(rank, e) for rank in range(s.n) for e in s.messages(rank)]
    return [(rank, e.peer, e.nbytes) for rank, e in events if e.nbytes]


def hosts(s: Observed) -> tuple[int, int]:
    """(ranks on each host, number of hosts). Fails where there is one tier only, or little of x."""
    assert 1 < s.args[1] < s.n <= s.xs[0].numel()
    return s.args[1], s.n // s.args[1]


def crossing(s: Observed, host_of: Callable[[int], int] | None = None) -> tuple[float, float]:
    """How often x goes over fast links, and over slow ones, if rank r is on host_of(r)."""
    host_of = host_of or (lambda rank: rank // s.args[1])
    by_tier = [0, 0]
    for sender, receiver, nbytes in messages(s):
        by_tier[host_of(sender) != host_of(receiver)] += nbytes
    return by_tier[0] / s.xs[0].nbytes, by_tier[1] / s.xs[0].nbytes


def fault(s: Observed) -> Finding | None:
    """Too many messages or bytes on the links of one rank, or padding."""
    ranks_per_host, num_hosts = s.args[1], s.n // s.args[1]
    part_bytes = -(-s.xs[0].numel() // s.n) * s.xs[0].element_size()
    # If x is cut into n parts first, one Lth has up to num_hosts of the longest.
    tiers = ("between", num_hosts, part_bytes), ("within", ranks_per_host, part_bytes * num_hosts)
    for where, size, most_bytes in tiers:
        for rank, side in itertools.product(range(s.n), (0, 1)):
            sizes = [
                message[2]
                for message in messages(s)
                if message[side] == rank and (tier_of(s, message) == where)
            ]
            if len(sizes) > 2 * (size - 1) or sum(sizes) > 2 * (size - 1) * most_bytes:
                why = (
                    f"rank {rank} {'receives' if side else 'sends'} {len(sizes)} messages {where} "
                    f"hosts, {sum(sizes):,} bytes; the budget is {2 * (size - 1)} messages and "
                    f"{2 * (size - 1) * most_bytes:,} bytes"
                )
                return Finding(Outcome.OVER_BUDGET, f"too much {where} hosts", why, s.label)
    if s.xs[0].numel() and crossing(s)[1] > 2 * (num_hosts - 1):
        why = "all ranks together send more than 2(H-1) times x between hosts: x was padded. "
        why += "torch.tensor_split makes parts of any size"
        return Finding(Outcome.OVER_BUDGET, "padding on the wire", why, s.label)
    return None


def tier_of(s: Observed, message: tuple[int, int, int]) -> str:
    """Which links a message takes."""
    return "within" if message[0] // s.args[1] == message[1] // s.args[1] else "between"


def is_flat_ring(s: Observed) -> bool:
    """Whether every rank sends to its neighbour among all ranks."""
    ways = {(receiver - sender) % s.n for sender, receiver, _ in messages(s)}
    return hosts(s) != () and ways in ({1}, {s.n - 1})


def has_other_hosts(s: Observed) -> bool:
    """Whether the bytes are those of hosts that have other ranks, or of swapped tiers."""
    ranks_per_host, num_hosts = hosts(s)
    fast, slow = 2 * (ranks_per_host - 1), 2 * (num_hosts - 1)
    is_dealt = crossing(s, lambda rank: rank % num_hosts) == (fast * num_hosts, slow)
    is_swapped = crossing(s) == (fast, slow * ranks_per_host)
    return is_swapped or (is_dealt and crossing(s)[1] > slow)


def has_leaders(s: Observed) -> bool:
    """Whether only one rank of each host sends to other hosts."""
    senders = {message[0] for message in messages(s) if tier_of(s, message) == "between"}
    return len(senders) == hosts(s)[1] and not is_flat_ring(s)


def misses_the_remainder(s: Observed) -> bool:
    """Whether only elements are wrong that cuts into equal parts leave over."""
    ranks_per_host, numel = s.args[1], s.xs[0].numel()
    left_over = torch.zeros(numel, dtype=torch.bool)
    left_over[numel // s.n * s.n :] = True
    for chunk in left_over.tensor_split(ranks_per_host):
        chunk[chunk.numel() // (s.n // ranks_per_host) * (s.n // ranks_per_host) :] = True
    wrong = [(y != r).flatten() for y, r in zip(s.ys, s.right, strict=True)]
    return bool(s.wrong_ranks) and not any((each & ~left_over).any() for each in wrong)


def misses_an_all_gather(s: Observed) -> bool:
    """Whether each part is right on some rank, and on no rank all are."""
    whole = chunks(s.right[0], s.n)
    is_right = [list(map(torch.equal, chunks(y, s.n), whole)) for y in s.ys]
    is_complete = all(map(any, zip(*is_right, strict=True)))
    return in_place(s).max() == 1 and is_complete and not any(map(all, is_right))


def sums_of_hosts(s: Observed) -> list[torch.Tensor]:
    """By rank, the sum over its host."""
    starts = [rank // s.args[1] * s.args[1] for rank in range(s.n)]
    return [sum(s.xs[start : start + s.args[1]]) for start in starts]


def sums_of_places(s: Observed) -> list[torch.Tensor]:
    """What comes out where chunks of x are added between hosts, and nothing within them."""
    sums = [sum(s.xs[place :: s.args[1]]).flatten() for place in range(s.args[1])]
    parts = [each.tensor_split(s.args[1])[place] for place, each in enumerate(sums)]
    return [torch.cat(parts).view(s.xs[0].shape)] * s.n


FAST = "fast = [host * ranks_per_host + p for p in range(ranks_per_host)]"
SLOW = "slow = [h * ranks_per_host + place for h in range(num_hosts)]"
LAST = "all_gather(chunks, fast, group)\n    return"
ACROSS = "reduce_scatter(pieces, slow, group)\n    all_gather(pieces, slow, group)"

MISTAKES = [
    Mistake(
        "returns the average",
        "The contract is the sum. Dividing by n is up to the caller.",
        seen=lambda s: s.is_answer([(r / s.n).to(r.dtype) for r in s.right]),
        made_by=patch("total.view(x.shape)", "(total / group.size).to(x.dtype).view(x.shape)"),
    ),
    Mistake(
        "ignores the remainder of an uneven size",
        "The elements that are left over where the ranks do not divide the size are in no part. "
        "torch.tensor_split makes parts of any size: cut once for the ranks of a host, and each "
        "part once more for the hosts.",
        hint=3,
        seen=misses_the_remainder,
        made_by=patch(
            "total.tensor_split(", "total[: x.numel() // group.size * group.size].tensor_split("
        ),
    ),
    Mistake(
        "an all-gather is missing",
        "Every part of the sum is complete on some rank, and no rank has all of them. There are "
        "two all-gathers: one between hosts, then one within each host.",
        seen=misses_an_all_gather,
        made_by=patch(LAST, "return"),
    ),
    Mistake(
        "the sum stays within the host",
        "Each rank has the sum over its own host. These sums are still to be added between hosts: "
        "in the chunk that the reduce-scatter completed on this rank.",
        seen=lambda s: s.is_answer(sums_of_hosts(s)),
        made_by=patch(ACROSS, "pass"),
    ),
    Mistake(
        "nothing is added up within the host",
        "Each element is a sum over one rank of each host. Start with a reduce-scatter within the "
        "host: then one chunk stands for the sum over all of its ranks.",
        seen=lambda s: s.is_answer(sums_of_places(s)),
        made_by=patch("reduce_scatter(chunks, fast, group)", "pass"),
    ),
    Mistake(
        "counts a contribution more than once",
        "Some ranks' elements are in the sum twice. What was added up between hosts is complete: "
        "within the host it is only handed around, by an all-gather.",
        hint=2,
        seen=lambda s: in_place(s).max() > 1,
        made_by=patch(
            LAST,
            "reduce_scatter(chunks, fast, group)\n    " + LAST,
        ),
    ),
    Mistake(
        "adds up different parts of x",
        "A part of x was added to a part of another number. A rank's partners on the other hosts "
        "have the same place there, rank % ranks_per_host: they hold the same chunk.",
        hint=2,
        seen=lambda s: counts(s).sum() != counts(s).diagonal(dim1=1, dim2=3).sum(),
        made_by=patch("+ place for h", "+ (place + h - host) % ranks_per_host for h"),
    ),
    Mistake(
        "crashes where the ranks do not divide the size",
        "view() needs parts of equal sizes. torch.tensor_split cuts a tensor of any size.",
        hint=3,
        seen=lambda s: s.xs[0].numel() % s.n > 0 and "invalid for input of size" in s.error,
        outcome=Outcome.CRASHED,
        made_by=patch("total.tensor_split(ranks_per_host)", "total.view(ranks_per_host, -1)"),
    ),
    Mistake(
        "a flat ring over both tiers",
        "Every rank sends to its neighbour among all ranks: nearly twice x goes over each slow "
        "link, and the fast links wait for it. Reduce-scatter within the host first: then a rank "
        "has only one Lth of x to send to other hosts.",
        seen=is_flat_ring,
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            FAST,
            "fast = list(range(group.size))",
            SLOW,
            "slow = [group.rank]",
            "total.tensor_split(ranks_per_host)",
            "total.tensor_split(group.size)",
        ),
    ),
    Mistake(
        "takes other ranks for the ranks of a host",
        "The sums are right, and the bytes on the wrong links. Consecutive ranks are on one host: "
        "its number is rank // ranks_per_host, and the place on it rank % ranks_per_host.",
        hint=3,
        seen=has_other_hosts,
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "host, place = divmod(group.rank, ranks_per_host)",
            "place, host = divmod(group.rank, num_hosts)",
            FAST,
            "fast = [host + p * num_hosts for p in range(ranks_per_host)]",
            SLOW,
            "slow = [h + place * num_hosts for h in range(num_hosts)]",
        ),
    ),
    Mistake(
        "one leader per host carries it all",
        "One rank of each host sends the whole tensor to other hosts, and the links of its other "
        "ranks are idle. Every rank has a link of its own: give each a chunk to carry.",
        seen=has_leaders,
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "reduce_scatter(chunks, fast, group)\n    " + ACROSS,
            "reduce_scatter(chunks, fast, group)\n"
            "    all_gather(chunks, fast, group)\n"
            "    for phase in (reduce_scatter, all_gather) if place == 0 else ():\n"
            "        phase(total.tensor_split(num_hosts), slow, group)\n"
            "    for other in fast[1:] if place == 0 else ():\n"
            "        group.send(total, other)\n"
            "    return (group.recv(total, fast[0]) if place else total).view(x.shape)",
        ),
    ),
    Mistake(
        "every rank carries the whole tensor across",
        "x goes between hosts once for each rank of a host, and all of them have the same sum to "
        "bring. After a reduce-scatter within the host each rank carries its own chunk.",
        seen=lambda s: (
            crossing(s)[1] == 2 * (hosts(s)[1] - 1) * hosts(s)[0] and not has_other_hosts(s)
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "chunks[place].tensor_split",
            "total.tensor_split",
            LAST,
            "return",
            "reduce_scatter(chunks, fast, group)",
            "reduce_scatter(chunks, fast, group)\n    all_gather(chunks, fast, group)",
        ),
    ),
]

GRADER = grader.OnRanks(
    name="hierarchical_all_reduce",
    cases=cases,
    right=right,
    fault=fault,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "send", "recv"),
    closed=("labkit.collectives",),
    # 6 first: 3 hosts of 2 and 2 hosts of 3. With two hosts, or two ranks on each, both neighbours
    # are the same one, and mistakes cancel.
    world_sizes=(6, 4, 1),
    shown="the sums are exact on any number of hosts, 2(H-1) times x goes between hosts, and all "
    "ranks carry equal parts of it",
)

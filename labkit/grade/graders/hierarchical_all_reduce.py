"""Grade hierarchical_all_reduce: exact sums, and the bytes of fast and of slow links."""

import itertools

import torch

from labkit.grade import grader as g
from labkit.grade.outcome import Finding


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Two tiers first, with sizes that come out even and others; then one tier."""

    def case(size: int, label: str, xs: g.ByRank) -> g.Case:
        return g.Case(f"{n // size} host{'s' * (size < n)} of {size}, {label}", xs, size)

    few, *_, many = sizes = [each for each in range(2, n) if n % each == 0] * 2 or [n, n]
    # Sums of the whole numbers are exact in float32, and not in float16 or bfloat16.
    big = {"low": -9999, "high": 9999}
    huge = draw(18, 7, dtype=torch.int64, permute=(1, 0), low=-(2**60), high=2**60)
    double = draw(250, dtype=torch.float64)
    return [
        *(case(size, "240 float32 elements", draw(240, **big)) for size in sorted({*sizes})),
        case(many, "247 float32 elements", draw(247, **big)),
        case(few, "a single number", draw()),
        case(few, "no elements", draw(0, 3)),
        case(few, "int64, a transposed (7, 18)", huge),
        case(1, "250 float64 elements", double),
        case(n, "250 float64 elements", double),
        case(few, "251 float64 elements", draw(251, dtype=torch.float64)),
    ]


def traffic(s: g.Observed) -> torch.Tensor:
    """Messages and bytes, both as [sender, receiver]. Empty messages do not count."""
    found = torch.zeros(2, s.n, s.n, dtype=torch.int64)
    for rank in range(s.n):
        for e in s.messages(rank):
            found[:, rank, e.peer] += torch.tensor([e.nbytes > 0, e.nbytes])
    return found


def across(s: g.Observed) -> torch.Tensor:
    """[sender, receiver]: whether they are on two hosts."""
    host = torch.arange(s.n) // s.args[1]
    return host[:, None] != host


def fault(s: g.Observed) -> Finding | None:
    """Too many messages or bytes on the links of one rank, or padding."""
    x, size, num_hosts = s.xs[0], s.args[1], s.n // s.args[1]
    # If x is cut into n parts first, one Lth has up to num_hosts of the longest.
    part = -(-x.numel() // s.n) * x.element_size()
    tiers = ("between", across(s), num_hosts, part), ("within", ~across(s), size, part * num_hosts)
    for (where, links, ranks, nbytes), side in itertools.product(tiers, (1, 2)):
        used, most = (traffic(s) * links).sum(side).T, torch.tensor([1, nbytes]) * 2 * (ranks - 1)
        if (used > most).any():
            why = "a rank {} up to {} messages and {:,} bytes {} hosts; the budget is {} and {:,}"
            verb = "receives" if side == 1 else "sends"
            why = why.format(verb, *used.amax(0).tolist(), where, *most.tolist())
            return Finding(g.Outcome.OVER_BUDGET, f"too much {where} hosts", why, s.label)
    if (traffic(s)[1] * across(s)).sum() > 2 * (num_hosts - 1) * x.nbytes:
        why = "all ranks together send more than 2(H-1) times x between hosts: x was padded. "
        why += "torch.tensor_split makes parts of any size"
        return Finding(g.Outcome.OVER_BUDGET, "padding on the wire", why, s.label)
    return None


def way(s: g.Observed) -> str:
    """What is wrong with the way to other hosts. Fails where there is one tier, or little of x."""
    size, num_hosts = s.args[1], s.n // s.args[1]
    assert 1 < size < s.n <= s.xs[0].numel()
    pairs = traffic(s)[1].nonzero().tolist()
    if {(receiver - sender) % s.n for sender, receiver in pairs} in ({1}, {s.n - 1}):
        return "a flat ring"
    # With 2 hosts of 2 ranks the same pairs may be right.
    if size != num_hosts and all(
        a % num_hosts == b % num_hosts or a // num_hosts == b // num_hosts for a, b in pairs
    ):
        return "other hosts"
    # An all-reduce of x among the hosts takes as much.
    most = (traffic(s)[1] * across(s)).sum(1).max()
    return "all of x" if most >= 2 * (num_hosts - 1) / num_hosts * s.xs[0].nbytes else ""


FAST = "fast = [host * ranks_per_host + p for p in range(ranks_per_host)]"
SLOW = "slow = [h * ranks_per_host + place for h in range(num_hosts)]"
WITHIN, LAST = "reduce_scatter(chunks, fast, group)", "all_gather(chunks, fast, group)\n    return"
ACROSS = "reduce_scatter(pieces, slow, group)\n    all_gather(pieces, slow, group)"
TOTAL = "total.view(x.shape)"

MISTAKES = [
    g.Mistake(
        "returns the average",
        "The contract is the sum. Dividing by n is up to the caller.",
        g.patch(TOTAL, "(total / group.size).to(x.dtype).view(x.shape)"),
    ),
    g.Mistake(
        "ignores the remainder of an uneven size",
        "The elements that are left over where the ranks do not divide the size are in no part. "
        "torch.tensor_split makes parts of any size: cut once for the ranks of a host, and each "
        "part once more for the hosts.",
        [
            g.patch("total.tensor_split(", f"total[: len(total) // {n} * {n}].tensor_split(")
            for n in ("group.size", "ranks_per_host")
        ],
        hint=3,
    ),
    g.Mistake(
        "an all-gather is missing",
        "Every part of the sum is complete on some rank, and no rank has all of them. There are "
        "two all-gathers: one between hosts, then one within each host.",
        [g.patch(LAST, "return"), g.patch("all_gather(pieces, slow, group)", "pass")],
    ),
    g.Mistake(
        "adds up within one tier only",
        "There are two sums. A reduce-scatter within the host makes one chunk on each rank the sum "
        "over the host. That chunk is then added up between hosts.",
        [g.patch(ACROSS, "pass"), g.patch(WITHIN, "pass")],
    ),
    g.Mistake(
        "counts a contribution more than once",
        "Some ranks' elements are in the sum twice. What was added up between hosts is complete: "
        "within the host it is only handed around, by an all-gather.",
        [
            g.patch(LAST, f"{WITHIN}\n    {LAST}"),
            *(g.patch(TOTAL, f"{TOTAL} * {n}") for n in ("ranks_per_host", "num_hosts")),
        ],
        hint=2,
    ),
    g.Mistake(
        "adds up different parts of x",
        "A part of x was added to a part of another number. A rank's partners on the other hosts "
        "have the same place there, rank % ranks_per_host: they hold the same chunk.",
        g.patch("+ place for h", "+ (place + h - host) % ranks_per_host for h"),
        hint=2,
    ),
    g.Mistake(
        "a flat ring over both tiers",
        "Every rank sends to its neighbour among all ranks: nearly twice x goes over each slow "
        "link, and the fast links wait for it. Reduce-scatter within the host first: then a rank "
        "has only one Lth of x to send to other hosts.",
        g.patch(
            *(FAST, "fast = list(range(group.size))", SLOW, "slow = [group.rank]"),
            *("total.tensor_split(ranks_per_host)", "total.tensor_split(group.size)"),
        ),
        over_budget=lambda s: way(s) == "a flat ring",
    ),
    g.Mistake(
        "takes other ranks for the ranks of a host",
        "The sums are right, and the bytes on the wrong links. Consecutive ranks are on one host: "
        "its number is rank // ranks_per_host, and the place on it rank % ranks_per_host.",
        g.patch(
            "host, place = divmod(group.rank, ranks_per_host)",
            "place, host = divmod(group.rank, num_hosts)",
            *(FAST, "fast = [host + p * num_hosts for p in range(ranks_per_host)]"),
            *(SLOW, "slow = [h + place * num_hosts for h in range(num_hosts)]"),
        ),
        over_budget=lambda s: way(s) == "other hosts",
        hint=3,
    ),
    g.Mistake(
        "carries the whole tensor between hosts",
        "If one rank of a host carries it, the links of its other ranks are idle; if all do, they "
        "carry the same. Reduce-scatter within the host first: then each rank has its own chunk "
        "of the host's sum to bring across.",
        g.patch(
            *("chunks[place].tensor_split", "total.tensor_split", LAST, "return"),
            *(WITHIN, f"{WITHIN}\n    all_gather(chunks, fast, group)"),
        ),
        over_budget=lambda s: way(s) == "all of x",
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=lambda xs, ranks_per_host: sum(xs),  # on every rank
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

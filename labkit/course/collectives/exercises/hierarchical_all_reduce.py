"""Grade hierarchical_all_reduce: exact sums, and the bytes between hosts."""

import torch

from labkit.grade import grader as g
from labkit.grade.verdict import Finding


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """One tier, then two; sizes that come out even and others, shapes, dtypes and a layout."""
    # Sums of these are exact in float32, and not in float16 or bfloat16.
    big = {"low": -9999, "high": 9999}
    inputs = {
        "240 float32 elements": draw(240, **big),
        "247 float32 elements": draw(247, **big),
        "a single number": draw(),
        "no elements": draw(0, 3),
        "int64, a transposed (7, 18)": draw(18, 7, dtype=torch.int64, permute=(1, 0), low=-(2**60)),
        "251 float64 elements": draw(251, dtype=torch.float64),
    }
    sizes = [size for size in range(1, n + 1) if n % size == 0]
    return [
        g.Case(f"{n // size} host{'s' * (size < n)} of {size}, {label}", xs, size)
        for label, xs in inputs.items()
        for size in sorted(sizes, key=lambda size: 1 < size < n)
    ]


def part_bytes(s: g.Observed) -> int:
    """Bytes of one nth of x, rounded up."""
    return int(-(-s.xs[0].numel() // s.n) * s.xs[0].element_size())


def budget(s: g.Observed) -> g.Budget:
    """Messages and bytes to the ranks of a host and to other hosts together."""
    size, num_hosts = s.args[1], s.n // s.args[1]
    parts = 2 * (size - 1) * num_hosts + 2 * (num_hosts - 1)
    return g.Budget(sends=2 * (size + num_hosts - 2), payload_bytes=parts * part_bytes(s))


def between_hosts(s: g.Observed) -> list[int]:
    """By rank, the bytes that it sends to other hosts."""
    size = s.args[1]
    return [
        sum(e.nbytes for e in s.messages(rank) if e.peer // size != rank // size)
        for rank in range(s.n)
    ]


def fault(s: g.Observed) -> Finding | None:
    """Too many bytes between hosts, for one rank or for all together."""
    sent, others = between_hosts(s), 2 * (s.n // s.args[1] - 1)
    most, total = others * part_bytes(s), others * s.xs[0].nbytes
    if max(sent) <= most and sum(sent) <= total:
        return None
    why = f"a rank sends {max(sent):,} bytes to other hosts, and all ranks together {sum(sent):,}; "
    why += f"the budget is {most:,} and {total:,}. torch.tensor_split cuts x without padding"
    return Finding(g.Outcome.OVER_BUDGET, "too much between hosts", why, s.label)


def way(s: g.Observed) -> str:
    """Name the mistake if too many bytes go to other hosts; "" if not."""
    num_hosts, most = s.n // s.args[1], max(between_hosts(s))
    if most <= 2 * (num_hosts - 1) * part_bytes(s):
        return ""
    pairs = [(rank, e.peer) for rank in range(s.n) for e in s.messages(rank) if e.nbytes]
    if {(b - a) % s.n for a, b in pairs} in ({1}, {s.n - 1}):
        return "a flat ring"
    if all(a % num_hosts == b % num_hosts or a // num_hosts == b // num_hosts for a, b in pairs):
        return "other hosts"
    # An all-reduce of x among the hosts takes as much.
    return "all of x" if most >= 2 * (num_hosts - 1) / num_hosts * s.xs[0].nbytes else ""


FAST = "fast = [host * ranks_per_host + p for p in range(ranks_per_host)]"
SLOW = "slow = [h * ranks_per_host + place for h in range(num_hosts)]"
LAST = "all_gather(chunks, fast, group)\n    return"

MISTAKES = [
    g.Mistake(
        "ignores the remainder of an uneven size",
        "The elements that are left over where the ranks do not divide the size are in no part. "
        "torch.tensor_split makes parts of any size: cut once for the ranks of a host, and each "
        "part once more for the hosts.",
        g.patch("total.ten", "total[: len(total) // group.size * group.size].ten"),
        hint=3,
    ),
    g.Mistake(
        "an all-gather is missing",
        "Every part of the sum is complete on some rank, and no rank has all of them. There are "
        "two all-gathers: one between hosts, then one within each host.",
        [g.patch(LAST, "return"), g.patch("all_gather(pieces, slow, group)", "pass")],
    ),
    g.Mistake(
        "adds up within the hosts only",
        "There are two sums. A reduce-scatter within the host makes one chunk on each rank the sum "
        "over the host. That chunk is then added up between hosts.",
        g.patch("reduce_scatter(pieces, slow, group)\n    all_gather(pieces, slow, group)", "pass"),
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
            "    reduce_scatter(chunks, fast, group)\n",
            "    reduce_scatter(chunks, fast, group)\n    all_gather(chunks, fast, group)\n",
        ),
        over_budget=lambda s: way(s) == "all of x",
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=lambda xs, ranks_per_host: sum(xs),  # on every rank
    budget=budget,
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

"""Grade peer_placement: racks of equal and other sizes, and all sets of failures by their bits."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import comb, prod
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, close, patch
from labkit.grade.outcome import Finding

FUNCTIONS = PLACE, LOSS = "place", "loss_probability"
Holders = Sequence[Sequence[int]]
OWN, MORE, FEWER, SAME_RACK, TWO_IN_RACK, UNEVEN = (
    "gives a host a copy of its own state",
    "makes m copies beside the host's own",
    "leaves hosts with too few copies",
    "puts a copy into the host's own rack",
    "puts two copies into one rack",
    "loads the hosts unevenly",
)


def cases(draw: Draw) -> list[Case]:
    """Hosts numbered rack by rack, across racks and at random; rings, groups and others."""
    rng, asked = draw.rng, []
    for n, m, num_racks in ((8, 2, 4), (12, 3, 4), (16, 2, 2), (24, 4, 4), (9, 2, 3), (96, 3, 12)):
        by_rack = [host * num_racks // n for host in range(n)]
        across = [10 - host % num_racks for host in range(n)]
        asked += [(by_rack, m), (across, m)]
    for n, m in ((7, 2), (11, 2), (10, 3), (11, 3), (12, 3), (20, 3), (5, 4), (23, 4), (257, 2)):
        asked.append((rng.sample(racks_of(n, m, rng), n), m))
    found = [
        Case(f"racks {racks}"[:60] + f", m = {m}", racks, m, function=PLACE, known=PLACE)
        for racks, m in asked
    ]
    placements = [(f"ring of {n}, m = {m}", ring(n, m)) for n, m in ((8, 2), (9, 3), (5, 4))]
    placements += [(f"groups of {m}, {n} hosts", groups(n, m)) for n, m in ((8, 2), (9, 3), (8, 4))]
    placements.append(("pairs and a ring of 3, 7 hosts", groups(4, 2) + [[5], [6], [4]]))
    for n in (9, 11):
        others = [[other for other in range(n) if other != host] for host in range(n)]
        drawn = [rng.sample(its, rng.randint(1, 3)) for its in others]
        placements.append((f"{n} hosts, placed at random", drawn))
    for label, holders in placements:
        for k in sorted({0, 1, 2, 3, 4, len(holders[0]) + 1, len(holders) - 2, len(holders)}):
            where = f"{label}, {k} fail"
            found.append(Case(where, holders, k, function=LOSS, known=LOSS))
    return found


def racks_of(n: int, m: int, rng: Any) -> list[int]:
    """The rack of each host: racks as large as allowed, then smaller ones, rack by rack."""
    sizes = [n // m] * 2
    while left := n - sum(sizes):
        needed = max(1, m + n % m - len(sizes))
        sizes.append(rng.randint(1, max(1, min(n // m, left - needed + 1))))
    return [rack for rack, size in enumerate(sizes) for _ in range(size)]


def ring(n: int, m: int) -> Holders:
    """Each host's state is with the next ones."""
    return [[(host + step) % n for step in range(1, m)] for host in range(n)]


def groups(n: int, m: int) -> list[list[int]]:
    """Hosts of a group hold each other's states."""
    return [[o for o in range(h - h % m, h - h % m + m) if o != h] for h in range(n)]


def right(first: Any, second: int, known: str) -> float:
    """How many groups are allowed; or which part of all sets of failures is fatal."""
    n = len(first)
    if known == PLACE:
        return n // second if n % second == 0 else n // second - 1 + second + n % second
    return fatal_share(states_of(first), second)


def fatal_share(groups: Sequence[Collection[int]], k: int) -> float:
    """Which part of all sets of k failures has a whole group, by sets as bits."""
    fatal = {sum(1 << host for host in {*group}) for group in groups}
    failed = [bits for bits in range(1 << len(groups)) if bits.bit_count() == k]
    return sum(any(bits & its == its for its in fatal) for bits in failed) / len(failed)


def states_of(holders: Holders) -> list[frozenset[int]]:
    """The hosts that have a state, by state."""
    return [frozenset([host, *others]) for host, others in enumerate(holders)]


def groups_of(holders: Holders) -> set[frozenset[int]]:
    """The sets of hosts that have the same state."""
    return {*states_of(holders)}


def problem(racks: Sequence[int], m: int, placed: Any) -> str:
    """The name of what is wrong with a placement; empty for one that keeps racks and loads."""
    if not isinstance(placed, list | tuple) or len(placed) != len(racks):
        return "returns something else than a list for each host"
    if 2 * sum(len(its) == m for its in placed) > len(placed):
        return MORE
    if any(host in its for host, its in enumerate(placed)):
        return OWN
    if any(len({*its}) < m - 1 for its in placed):
        return FEWER
    if any(racks[host] == racks[other] for host, its in enumerate(placed) for other in its):
        return SAME_RACK
    if any(len({racks[other] for other in its}) < len(its) for its in placed):
        return TWO_IN_RACK
    loads = Counter(other for its in placed for other in its)
    return UNEVEN if any(loads[host] != m - 1 for host in range(len(racks))) else ""


def same(got: Any, right: float, case: Case) -> bool:
    """A placement that keeps the contract, whatever its groups; the probability."""
    return not problem(*case.args, got) if case.function == PLACE else close(got, right)


def describe(s: Observed) -> str:
    """The number of groups, or what was returned."""
    if s.case.function == PLACE and not s.wrong_ranks:
        return f"{len(groups_of(s.y))} groups; {s.right[0]} are enough"
    if s.case.function == PLACE:
        return f"got {s.y!r:.120}"
    return f"got {s.y!r:.30}, expected {s.right[0]:.10g}"


def fault(s: Observed) -> Finding | None:
    """A placement in another form."""
    if s.case.function != PLACE or not s.wrong_ranks:
        return None
    why = "The result has a list for each host: the m - 1 other hosts with a copy of its state."
    return Finding(Outcome.WRONG, problem(*s.args, s.y), why, f"{s.label}: {describe(s)}", 2)


def has_more_groups(s: Observed) -> bool:
    """Whether there are more groups than allowed."""
    return s.case.function == PLACE and len(groups_of(s.y)) > s.right[0]


def named(name: str) -> Callable[[Observed], bool]:
    """A predicate: whether this is wrong with a placement."""
    return lambda s: s.case.function == PLACE and problem(*s.args, s.y) == name


def each_alone(groups: Iterable[Collection[int]], n: int, k: int) -> list[float]:
    """For each group, the probability that all its hosts are among k of n that fail."""
    return [comb(n - len(its), k - len(its)) / comb(n, k) if k >= len(its) else 0 for its in groups]


def lost_states(holders: Holders, k: int) -> float:
    """How many states are lost on average."""
    return sum(each_alone(states_of(holders), len(holders), k))


def lost_groups(holders: Holders, k: int) -> float:
    """How many groups are lost on average."""
    return sum(each_alone(groups_of(holders), len(holders), k))


def independent(holders: Holders, k: int, of: Any = groups_of) -> float:
    """As if groups, or states, failed independently."""
    return 1 - prod(1 - each for each in each_alone(of(holders), len(holders), k))


def with_replacement(holders: Holders, k: int, of: Any = groups_of) -> float:
    """As if each host failed with k / n, whatever the others do."""
    return 1 - prod(1 - (k / len(holders)) ** len(its) for its in of(holders))


WHOLE = "groups = {frozenset([host, *others]) for host, others in enumerate(holders)}"
ANY = "any(group <= failed for group in groups)"
REST = "rest = [host for hosts in by_rack.values() for host in hosts]"
GROUP = "holders[host] = [other for other in group if other != host]"
RING = "holders[host] = [rest[(at + i * step) % len(rest)] for i in range(1, m)]"
MISTAKES = [
    Mistake(
        OWN,
        "The host has its state already. The list names the m - 1 others, who still have it when "
        "the host is gone.",
        hint=3,
        seen=named(OWN),
        made_by=patch(GROUP, "holders[host] = group[: m - 1]"),
    ),
    Mistake(
        MORE,
        "m counts the host's own copy, as in the paper. m - 1 others have one.",
        hint=3,
        seen=named(MORE),
        made_by=patch("by_rack: dict", "m += 1\n    by_rack: dict"),
    ),
    Mistake(
        FEWER,
        "If m does not divide n, hosts are left over. They need partners, too: with the hosts of "
        "one group they form a ring.",
        hint=2,
        seen=named(FEWER),
        made_by=patch(
            *("largest[: m + len(racks) % m]", "largest[: len(racks) % m]"),
            "[ring[(at + step) % len(ring)] for step in range(1, m)]",
            "[other for other in ring if other != host]",
        ),
    ),
    Mistake(
        SAME_RACK,
        "A rack fails as a whole: its power, its switch. Go through the hosts rack by rack, and "
        "take hosts together that are at least one rack's length apart.",
        seen=named(SAME_RACK),
        made_by=patch(REST, "rest = sorted(host for hosts in by_rack.values() for host in hosts)"),
    ),
    Mistake(
        TWO_IN_RACK,
        "All m hosts with a copy are in different racks, and not only in another one than the "
        "host: two racks must not lose what m can keep.",
        hint=2,
        seen=named(TWO_IN_RACK),
        made_by=patch(
            GROUP,
            "away = [o for o in rest if racks[o] != racks[host]]\n"
            "            holders[host] = sorted(away, key=lambda o: racks[o])[: m - 1]",
        ),
    ),
    Mistake(
        UNEVEN,
        "Some hosts have more copies than others, and need more memory and bandwidth. Each host "
        "has m - 1 copies of others' states.",
        hint=2,
        seen=named(UNEVEN),
        made_by=patch(
            GROUP,
            "firsts = {racks[o]: o for o in range(len(racks)) if racks[o] != racks[host]}\n"
            "            holders[host] = [*firsts.values()][: m - 1]",
        ),
    ),
    Mistake(
        "makes a ring where groups lose less",
        "In a ring each host and its next ones are a group: n ways to lose a state when m hosts "
        "fail. Hosts that hold each other's states are one group together: n / m ways.",
        outcome=Outcome.OVER_BUDGET,
        seen=has_more_groups,
        made_by=patch(
            *(REST, f"{REST}\n    step = max(map(len, by_rack.values()))"),
            *(GROUP, f"at = rest.index(host)\n            {RING}"),
        ),
    ),
    Mistake(
        "counts a set of failures for each state that it loses",
        "Four failures can hit two groups: sums over groups or hosts count these sets twice. Count "
        "each set once, if it loses any state.",
        hint=2,
        function=LOSS,
        formula=[lost_states, lost_groups]
        + [lambda *its, of=of: min(1.0, of(*its)) for of in (lost_states, lost_groups)],
        made_by=patch(ANY, ANY.replace("any", "sum")),
    ),
    Mistake(
        "forgets the host's own copy",
        "A state is lost if the hosts with its copies fail, and its own host as well.",
        function=LOSS,
        formula=fatal_share,
        made_by=patch(WHOLE, WHOLE.replace("[host, *others]", "others")),
    ),
    Mistake(
        "gives the probability for one state",
        "That is what one host should expect. The job has to load from storage if any of the n "
        "states is lost.",
        function=LOSS,
        formula=lambda holders, k: lost_states(holders, k) / len(holders),
        made_by=patch(
            *(WHOLE, "groups = [{host, *others} for host, others in enumerate(holders)]"),
            *(ANY, ANY.replace("any", "sum")),
            *("num_fatal / len(losses)", "num_fatal / len(losses) / len(holders)"),
        ),
    ),
    Mistake(
        "takes groups for independent",
        "k hosts fail in all: if one group has lost all its hosts, fewer failures are left for the "
        "others. Products of probabilities do not see that.",
        hint=2,
        function=LOSS,
        formula=[
            lambda *its, lost=lost, of=of: lost(*its, of=of)
            for lost in (independent, with_replacement)
            for of in (states_of, groups_of)
        ],
        made_by=patch(
            "return num_fatal / len(losses)",
            "survives = 1.0\n"
            "    for group in groups:\n"
            "        survives *= 1 - sum(group <= failed for failed in losses) / len(losses)\n"
            "    return 1 - survives",
        ),
    ),
]

GRADER = Questions(
    name="peer_placement",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    describe=describe,
    fault=fault,
    shown="no rack has two copies of a state, all hosts hold equally many, no placement has fewer "
    "groups, and you know how likely a loss is for any placement",
)

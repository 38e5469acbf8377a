"""Grade peer_placement: racks of equal and other sizes, and shares of all sets of failures."""

from typing import Any

from labkit.calc.reliability import fatal_share, groups, ring
from labkit.grade import grader as g
from labkit.grade.differences import cut

PLACE, LOSS = "place", "loss_probability"
NOT_OTHERS = "a host's list does not have m - 1 others"
ONE_RACK = "puts two copies into one rack"
TOO_FULL = "leaves a rack too full for the groups"
UNEVEN = "loads the hosts unevenly"
# A rack with n // m hosts: last or first, of the largest or smallest number, and two of them.
FULL = [((0, 1, 2, 3, 3), 2), ((3, 2, 1, 0, 0), 2), ((3, 3, 0, 1, 2), 2), ((0, 0, 1, 2, 3), 2)]
FULL += [
    ((0, 1, 2, 3, 4, 4, 5, 5), 3),
    ((5, 5, 4, 4, 3, 2, 1, 0), 3),
    ((4, 4, 5, 5, 0, 1, 2, 3), 3),
]
RIGHT = "a right placement"


def cases(draw: g.Draw) -> list[g.Case]:
    """Hosts numbered rack by rack, across racks and at random; rings, groups and others."""
    rng, asked = draw.rng, [([*racks], m) for racks, m in FULL]
    for n, m, num_racks in ((8, 2, 4), (12, 3, 4), (16, 2, 2), (24, 4, 4), (9, 2, 3), (96, 3, 12)):
        asked.append(([host * num_racks // n for host in range(n)], m))
        asked.append(([10 - host % num_racks for host in range(n)], m))
    for n, m in ((7, 2), (11, 2), (10, 3), (11, 3), (12, 3), (20, 3), (5, 4), (23, 4), (257, 2)):
        size, rest = divmod(n, m)
        num_small = rng.randint(m + rest - 2, n - 2 * size)
        racks = [0] * size + [1] * size + [2 + i % num_small for i in range(n - 2 * size)]
        numbers = rng.sample(range(-99, 99), max(racks) + 1)
        asked.append(([numbers[rack] for rack in rng.sample(racks, n)], m))
    listed = [
        g.Case(f"{cut(f'racks {racks}')}, m = {m}", racks, m, function=PLACE, known=RIGHT)
        for racks, m in asked
    ]
    placements = {f"ring of {n}, m = {m}": ring(n, m) for n, m in ((8, 2), (9, 3), (5, 4))}
    placements |= {f"groups of {m}, {n} hosts": groups(n, m) for n, m in ((8, 2), (9, 3), (8, 4))}
    placements["pairs and a ring of 3, 7 hosts"] = [*groups(4, 2), [5], [6], [4]]
    for n in (9, 11):
        drawn = [rng.sample([*range(h), *range(h + 1, n)], rng.randint(1, 3)) for h in range(n)]
        placements[f"{n} hosts, placed at random"] = drawn
    for label, holders in placements.items():
        for k in sorted({0, 1, 2, 3, 4, len(holders[0]) + 1, len(holders) - 2, len(holders)}):
            share = fatal_share(holders, k)
            listed.append(g.Case(f"{label}, {k} fail", holders, k, function=LOSS, known=share))
    return listed


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Return the probability; of a placement, what is wrong with it."""
    racks, m = args
    placed = watch.function(racks, m)
    if not isinstance(racks[0], int):
        return placed
    if not isinstance(placed, list | tuple) or len(placed) != len(racks):
        return "something else than a list for each host"
    states = [{host, *its} for host, its in enumerate(placed)]
    if any(len(state) != m or len(its) != m - 1 for state, its in zip(states, placed)):
        return NOT_OTHERS
    num_groups, rest = divmod(len(racks), m)
    if any(len({racks[host] for host in state}) < len(state) for state in states):
        ring = [racks[host] for host, state in enumerate(states) if states.count(state) < m]
        is_full = any(racks.count(rack) == num_groups for rack in {*racks}.difference(ring))
        return TOO_FULL if rest and is_full else ONE_RACK
    if sorted(sum(map(list, placed), [])) != sorted([*range(len(racks))] * (m - 1)):
        return UNEVEN
    allowed, found = num_groups + (m + rest - 1) * (rest > 0), len(set(map(frozenset, states)))
    return RIGHT if found <= allowed else f"{found} groups, where {allowed} are enough"


STATES = "groups = {frozenset([host, *others]) for host, others in enumerate(holders)}"
LISTED = (STATES, "groups = [{host, *others} for host, others in enumerate(holders)]")
ANY, SHARE = "any(group <= failed for group in groups)", "num_fatal / len(losses)"
SURVIVES = """product = 1.0
    for group in groups:
        product *= 1 - sum(group <= failed for failed in losses) / len(losses)
    return 1 - product"""
REST = "rest = [host for hosts in by_rack.values() for host in hosts]"
GROUP = "holders[host] = [other for other in group if other != host]"
NEXT = "ring[(at + step) % len(ring)] for step in range(1, m)"
RING = "holders[host] = [rest[(rest.index(host) + i * step) % len(rest)] for i in range(1, m)]"
MISTAKES = [
    g.Mistake(
        "names more or fewer than m - 1 other hosts",
        "m counts the host's own copy, as in the paper, and its list names the m - 1 others. If m "
        "does not divide n, hosts are left over: with the hosts of one group they form a ring.",
        g.patch("by_rack: dict", "m += 1\n    by_rack: dict"),
        wrong=lambda s: s.y == NOT_OTHERS,
        hint=3,
    ),
    g.Mistake(
        ONE_RACK,
        "A rack fails as a whole: its power, its switch. All m hosts with a copy are in different "
        "racks. Go through the hosts rack by rack, and take hosts together that are at least one "
        "rack's length apart.",
        g.patch(REST, "rest = sorted(host for hosts in by_rack.values() for host in hosts)"),
        wrong=lambda s: s.y == ONE_RACK,
    ),
    g.Mistake(
        TOO_FULL,
        "Besides the ring there are q - 1 groups. A rack with q hosts must give one to the ring, "
        "or two of its hosts are in one group. Take one host from each of the m + r fullest racks.",
        g.patches(
            "sorted(by_rack.values(), key=len, reverse=True)",
            "[*by_rack.values()]",
            "[*by_rack.values()][::-1]",
            "[by_rack[rack] for rack in sorted(by_rack)]",
            "[by_rack[rack] for rack in sorted(by_rack)][::-1]",
            "sorted(by_rack.values(), key=len)",
        ),
        wrong=lambda s: s.y == TOO_FULL,
        hint=2,
    ),
    g.Mistake(
        UNEVEN,
        "Each host has copies of m - 1 states besides its own. In a ring each state goes to the "
        "next m - 1 hosts. If it always goes to the first ones, these need more memory.",
        g.patch(f"[{NEXT}]", "[other for other in ring if other != host][: m - 1]"),
        wrong=lambda s: s.y == UNEVEN,
        hint=3,
    ),
    g.Mistake(
        "makes a ring where groups lose less",
        "In a ring each host and its next ones are a group: n ways to lose a state when m hosts "
        "fail. Hosts that hold each other's states are one group together: n / m ways.",
        g.patch(REST, f"{REST}\n    step = max(map(len, by_rack.values()))", GROUP, RING),
        wrong=lambda s: "are enough" in s.y,
    ),
    g.Mistake(
        "counts a set of failures for each state that it loses",
        "Four failures can hit two groups: sums over groups or hosts count these sets twice. Count "
        "each set once, if it loses any state.",
        [
            g.patch(ANY, ANY.replace("any", "sum"), SHARE, share, *by)
            for share in (SHARE, f"min(1.0, {SHARE})")
            for by in ((), LISTED)
        ],
        hint=2,
    ),
    g.Mistake(
        "forgets the host's own copy",
        "A state is lost if the hosts with its copies fail, and its own host as well.",
        g.patch("frozenset([host, *others])", "frozenset(others)"),
        hint=3,
    ),
    g.Mistake(
        "takes groups for independent",
        "k hosts fail in all: if one group has lost all its hosts, fewer failures are left for the "
        "others. Products of probabilities do not see that.",
        g.patch(f"return {SHARE}", SURVIVES),
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=(PLACE, LOSS),
    cases=cases,
    right=lambda *_, known: known,
    call=call,
    mistakes=MISTAKES,
    shown="no rack has two copies of a state, all hosts hold equally many, no placement has fewer "
    "groups, and you know how likely a loss is for any placement",
)

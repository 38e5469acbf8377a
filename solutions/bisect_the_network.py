"""Find the degraded uplink of a fat tree by bisection.

An interviewer asks: "A job on 512 GPUs is 30% slower than last week. Every node passes its tests,
and between any two nodes the bandwidth is as it should be. You suspect one uplink. How do you find
it, and with how many measurements?"

A network has n leaf switches, numbered 0 to n - 1, with many hosts below each. All hosts below a
leaf share its uplink. At most one uplink is degraded: it carries less than it should, and still
enough for a few hosts. So it shows only while all hosts below its leaf send upwards at once, as
they do in each measurement: two leaves are enough.

Write find_degraded(n, healthy_s, measure).

    n          number of leaves, 3 or more
    healthy_s  a dict: healthy_s[k] is how many seconds the traffic of k leaves takes where no
               uplink is degraded, for k from 2 to n. More leaves take longer: they share the core
    measure    measure(leaves) -> seconds. All hosts below these leaves send at once, each to a host
               below another leaf of the list, until the last message is there
               leaves   a list of two or more different leaves. A single leaf has nobody to send to.
                        For other lists measure raises ValueError
               seconds  where the degraded leaf is in the list, 1.8 times healthy_s[len(leaves)] or
                        more. Otherwise within 5% of healthy_s[len(leaves)], above or below
    returns    the number of the leaf whose uplink is degraded; None if none is

Contract
    returns  an int, or None
    budget   at most ceil(log2(n)) + 2 calls of measure
    never    the same leaves three times, in whatever order: then measure raises RuntimeError. A
             list may be measured again once
"""

from collections.abc import Callable


def find_degraded(
    n: int, healthy_s: dict[int, float], measure: Callable[[list[int]], float]
) -> int | None:
    """Return the leaf whose uplink is degraded, or None."""

    ### BEGIN SOLUTION
    def is_slow(leaves: list[int]) -> bool:
        return measure(leaves) > 1.4 * healthy_s[len(leaves)]

    candidates, cleared = list(range(n)), []
    if not is_slow(candidates):
        return None
    while len(candidates) > 1:
        middle = (len(candidates) + 1) // 2
        half, rest = candidates[:middle], candidates[middle:]
        partner = cleared[:1] if len(half) == 1 else []  # a single leaf needs one to send to
        if is_slow(half + partner):
            candidates, cleared = half, cleared + rest
        else:
            candidates, cleared = rest, cleared + half
    return candidates[0]
    ### END SOLUTION

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

    raise NotImplementedError("not attempted yet: your code replaces this line")

"""Quantile summaries: merge them, and prune them, with bounds on every rank.

An interviewer asks: "Boosted trees need bins with about the same weight, so you need quantiles of a
column that is spread over machines. Nobody can sort all of it. What does each machine send, how are
these merged, and how far off may the quantiles be?"

Write `merge(one, other)` and `prune(summary, size)`.

Contract
    a summary  describes a weighted set of numbers by some of its values. It is a list of entries
               (value, low, high, weight), sorted by value, each value once:
                   low      at least so much weight of the set lies below the value
                   high     at most so much weight lies at the value or below it
                   weight   at least so much weight lies at the value itself
               The first entry is the least value of the set, with low = 0. The last entry is the
               largest, and its high is the weight of the whole set. An empty set has no entries.
               All numbers are whole, so that sums are exact

    merge      merge(one, other) returns the summary of both sets together, with all values of both
               lists, and the tightest bounds that the two summaries allow. Both may be empty.
               Bounds add. A value that a summary lists has that entry's bounds. Any other value
               lies between two of its entries, or outside of them, and has these:
                   between  low = low + weight of the entry before it, high = high - weight of the
                            entry after it, weight = 0
                   below the first entry all three are 0
                   above the last one low = high = the weight of the whole set, weight = 0

    prune      prune(summary, size) returns at most `size` entries, 2 or more, unchanged and in
               order. A summary that has no more entries is returned as it is. Else, for k from 0 to
               size - 1, keep the entry found for the rank k * total / (size - 1), each once:
                   the first entry for k = 0, the last one for k = size - 1
                   else the neighbours i and i + 1 with low + high of i at most 2 * rank, and low +
                   high of i + 1 above that. Where no i is so, the first entry. Keep i if
                   2 * rank < (low + weight of i) + (high - weight of i + 1), else i + 1
               Each pruning adds total / (size - 1) to the uncertainty of a rank, at most
    arguments  stay unchanged
"""

Entry = tuple[float, int, int, int]


def merge(one: list[Entry], other: list[Entry]) -> list[Entry]:
    """Return the summary of both sets together."""
    ### BEGIN SOLUTION
    merged = []
    for value in sorted({entry[0] for entry in one + other}):
        bounds = zip(_bounds(one, value), _bounds(other, value))
        merged.append((value, *(ours + theirs for ours, theirs in bounds)))
    return merged
    ### END SOLUTION


def prune(summary: list[Entry], size: int) -> list[Entry]:
    """Return at most `size` entries of the summary, near equal steps of rank."""
    ### BEGIN SOLUTION
    last = len(summary) - 1
    if last < size:
        return list(summary)
    total = summary[last][2]
    kept = {0, last}
    for k in range(1, size - 1):
        twice = 2 * k * total / (size - 1)
        i = max([0, *(i for i in range(last) if summary[i][1] + summary[i][2] <= twice)])
        (_, low, _, weight), (_, _, high, next_weight) = summary[i], summary[i + 1]
        kept.add(i if twice < low + weight + high - next_weight else i + 1)
    return [summary[i] for i in sorted(kept)]
    ### END SOLUTION


### BEGIN SOLUTION
def _bounds(summary: list[Entry], value: float) -> tuple[int, int, int]:
    """Return low, high and weight of a value, which the summary may not list."""
    low, high = 0, summary[-1][2] if summary else 0
    for entry in summary:
        if entry[0] == value:
            return entry[1:]
        if entry[0] > value:
            return low, entry[2] - entry[3], 0
        low = entry[1] + entry[3]
    return low, high, 0


### END SOLUTION

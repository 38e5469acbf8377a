"""Grade serving_metrics: logs with queues, empty events, several tokens at once, cancellations."""

from collections.abc import Sequence
from statistics import mean, median_high
from typing import Any

from labkit.grade import grader as g
from labkit.serving.metrics import Timing, percentile

Log = Sequence[tuple[float, int, str, int]]
TIMINGS, PERCENTILE, REPORT = "timings", "percentile", "report"
# (number of values, percent). Floats round 14 / 100 * 50 and 28 / 100 * 25 up.
PLACES = ((1, 50), (4, 50), (5, 50), (7, 90), (20, 95), (40, 5), (14, 50), (25, 28), (3, 100))


def cases(draw: g.Draw) -> list[g.Case]:
    """Return logs of a few requests, percentiles, and reports with targets."""
    rng, listed, reports = draw.rng, [], []
    for num_requests, percent in ((2, 50), (5, 90), (9, 20), (20, 95)):
        log = a_log(rng, num_requests)
        label = f"a log of {len(log)} events"
        listed.append(g.Case(label, log, function=TIMINGS))
        # A TTFT that is met exactly, and a TPOT that some miss.
        ttft_s = median_high(each.ttft_s for each in waits(log).values())
        tpot_s = mean(each.tpot_s or 0 for each in waits(log).values())
        label += f", {percent}%, targets {ttft_s:.3g} s and {tpot_s:.3g} s"
        reports.append(g.Case(label, log, percent, ttft_s, tpot_s, function=REPORT))
    for n, percent in PLACES:
        values = [rng.expovariate(1) for _ in range(n)]
        listed.append(g.Case(f"{n} values, {percent}%", values, percent, function=PERCENTILE))
    return listed + reports


def a_log(rng: Any, num_requests: int) -> Log:
    """Draw a log of requests. Every third one cancels, before its first token or later.

    Times are multiples of 2**-10, so that their differences are exact.
    """
    log, now = [], rng.uniform(0, 100)
    special = {0: [2, 0, 1], 1: [1], 5: []}
    for number, request in enumerate(rng.sample(range(100), num_requests)):
        time_s = now = now + rng.expovariate(2)
        end = "cancels" if number % 3 == 2 else "ends"
        counts = special.get(number, [*rng.choices((0, 1, 1, 2, 3), k=rng.randint(0, 9)), 1])
        sent = [("sends", num) for num in [0, *counts]]
        for what, count in [("arrives", 50), ("starts", 50), *sent, (end, sum(counts))]:
            time_s += 3 * (what == "cancels")  # so that the last event can be one
            log.append((round(time_s * 1024) / 1024, request, what, count))
            time_s += rng.expovariate(20 if what == "sends" else 2)
    return sorted(log, key=lambda event: event[0])


def waits(log: Log) -> dict[int, Timing]:
    """Return a Timing for each request that ended."""
    begins = {request: at for at, request, what, _ in log if what == "arrives"}
    found = {request: Timing(begins[request]) for _, request, what, _ in log if what == "ends"}
    for at, request, what, count in log:
        if what == "sends" and request in found:
            found[request].token_s += [at] * count
    return found


def right(*args: Any) -> Any:
    """Compute the metrics with labkit.serving."""
    if len(args) == 2:
        return percentile(*args)
    log, *asked = args
    if not asked:
        keys = ("ttft_s", "itl_s", "tpot_s", "end_to_end_s")
        return {r: {key: getattr(its, key) for key in keys} for r, its in waits(log).items()}
    percent, ttft_s, tpot_s = asked
    each, seconds = waits(log).values(), log[-1][0] - log[0][0]
    good = [its for its in each if its.ttft_s <= ttft_s and (its.tpot_s or 0) <= tpot_s]
    return {
        "ttft_s": percentile([its.ttft_s for its in each], percent),
        "itl_s": percentile([gap for its in each for gap in its.itl_s], percent),
        "tpot_s": percentile([its.tpot_s for its in each if its.tpot_s is not None], percent),
        "throughput": sum(len(its.token_s) for its in each) / seconds,
        "goodput": len(good) / seconds,
    }


TPOT = "sum(itl_s) / len(itl_s) if itl_s else None"
FROM_ARRIVAL = "(token_s[-1] - arrival_s)"
TIMING = "timing(arrival_s[request], token_s[request])"
# Patches of the solution: another TTFT or end-to-end time; a request's first event of a kind.
TTFT = TIMING + " | {{'ttft_s': {} - {}}}"
END_TO_END = TIMING + " | {{'end_to_end_s': token_s[request][-1] - {}}}"
FIRST = "next(at for at, *its, _ in log if its == [request, '{}'])"
MISTAKES = [
    g.Mistake(
        "counts from the first pass, not from the arrival",
        "The user waits from the arrival on. Under load the queue is most of the time to first "
        "token, and a clock that starts behind it shows none of it.",
        [
            g.patch(TIMING, TTFT.format("token_s[request][0]", FIRST.format("starts"))),
            g.patch('if what == "arrives":', 'if what in ("arrives", "starts"):'),
            g.patch(TIMING, END_TO_END.format(FIRST.format("starts"))),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes an empty event for the first token",
        "A stream opens with an event that holds no token. TTFT ends with the first event whose "
        "count is above 0.",
        g.patch(TIMING, TTFT.format(FIRST.format("sends"), "arrival_s[request]")),
        hint=2,
    ),
    g.Mistake(
        "counts events of the stream as tokens",
        "An event can hold several tokens: of a speculative pass, or of a busy client's buffer. "
        "There are count - 1 gaps of 0 between them. An empty event holds none.",
        g.patches("[time_s] * count", "[time_s] * min(count, 1)", "[time_s]"),
        hint=2,
    ),
    g.Mistake(
        "has the first token among the gaps",
        "A gap is between two tokens, so n tokens have n - 1 gaps, and TPOT is the mean of these. "
        "The time before the first token is TTFT: it is much longer, and is in neither ITL nor "
        "TPOT.",
        [
            g.patch("zip(token_s, token_s[1:]", "zip([arrival_s, *token_s], token_s"),
            *g.patches(
                TPOT,
                f"{FROM_ARRIVAL} / len(token_s) if itl_s else None",
                f"{FROM_ARRIVAL} / len(token_s)",
                f"{FROM_ARRIVAL} / len(itl_s) if itl_s else None",
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "divides by the tokens, not by the gaps",
        "n tokens have n - 1 gaps, so TPOT is (last - first) / (n - 1). A single token has no gap, "
        "and its TPOT is None.",
        g.patches(
            TPOT,
            "sum(itl_s) / len(token_s) if itl_s else None",
            "sum(itl_s) / len(token_s)",
            "sum(itl_s) / max(1, len(itl_s))",
        ),
        hint=2,
    ),
    g.Mistake(
        "counts tokens of cancelled requests",
        "Throughput is of answers that ended: nobody reads the others. Else a server whose clients "
        "give up looks as good as one that answers.",
        g.patch(
            'sum(len(its["itl_s"]) + 1 for its in each)',
            'sum(count for _, _, what, count in log if what == "sends")',
        ),
        hint=3,
    ),
    g.Mistake(
        "takes another percentile",
        "The percentile is one of the values, at place ceil(percent n / 100) from 1. It is not "
        "between two of them, as numpy has it, and not one place further. Divide last, without "
        "floats: 28 / 100 * 25 is 7.000000000000001, and its ceil is 8.",
        g.patches(
            "sorted(values)[place - 1]",
            "float(__import__('numpy').percentile(values, percent))",
            "[*sorted(values), max(values)][percent * len(values) // 100]",
            "sorted(values)[__import__('math').ceil(percent / 100 * len(values)) - 1]",
            "sorted(values)[max(0, percent * len(values) // 100 - 1)]",
            "sorted(values)[max(0, round(percent * len(values) / 100) - 1)]",
            "sorted(values)[percent * (len(values) - 1) // 100]",
            "sorted(values)[-(-percent * (len(values) - 1) // 100)]",
            "sorted(values)[round(percent * (len(values) - 1) / 100)]",
        ),
        hint=2,
    ),
    g.Mistake(
        "has no single gaps in the percentile of ITL",
        "A mean per request hides stalls, and so does a percentile per request. Put the gaps of "
        "all requests into one list.",
        g.patch('[gap for its in each for gap in its["itl_s"]]', "tpots"),
    ),
    g.Mistake(
        "has another definition of goodput",
        "A request is good if its own TTFT and its own TPOT meet the targets. One token has no "
        "TPOT, and cannot miss it. Goodput is good requests per second: as a share of the requests "
        "it could be 100% on a server that refuses most of them.",
        [
            g.patch("<= ttft_s and", '<= ttft_s and its["itl_s"] and'),
            g.patch("len(good) / seconds", "len(good) / len(each)"),
        ],
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=(TIMINGS, PERCENTILE, REPORT),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    shown="each measure is what its name says, in logs with queues, empty events, several tokens "
    "at once and clients that give up",
)

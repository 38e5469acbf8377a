"""Grade serving_metrics: logs with queues, empty events, several tokens at once, cancellations."""

from collections.abc import Sequence
from statistics import mean, median_high
from typing import Any

from labkit.grade import grader as g
from labkit.serving.metrics import Timing, percentile

Log = Sequence[tuple[float, int, str, int]]
TIMINGS, PERCENTILE, REPORT = "timings", "percentile", "report"
# How many values, percent. Floats round 14 / 100 * 50 and 28 / 100 * 25 up.
PLACES = ((1, 50), (4, 50), (5, 50), (7, 90), (20, 95), (40, 5), (14, 50), (25, 28), (3, 100))


def cases(draw: g.Draw) -> list[g.Case]:
    """Logs of a few requests, all percentiles that are asked for, reports with targets."""
    rng = draw.rng
    logs = [a_log(rng, num_requests) for num_requests in (2, 5, 9, 20)]
    logs.append(a_log(rng, 12, impatient=True))
    listed = [g.Case(f"a log of {len(log)} events", log, function=TIMINGS) for log in logs]
    for n, percent in PLACES:
        values = [rng.expovariate(1) for _ in range(n)]
        listed.append(g.Case(f"{n} values, {percent}%", values, percent, function=PERCENTILE))
    for log, percent in zip(logs, (50, 90, 20, 95, 50)):
        each = waits(log).values()
        ttft_s = median_high(x.ttft_s for x in each)
        tpot_s = mean(x.tpot_s or 0.1 for x in each if x.ttft_s <= ttft_s)  # so that some miss it
        label = f"a log of {len(log)} events, {percent}%, targets {ttft_s:.3g} s and {tpot_s:.3g} s"
        listed.append(g.Case(label, log, percent, ttft_s, tpot_s, function=REPORT))
    return listed


def a_log(rng: Any, num_requests: int, impatient: bool = False) -> Log:
    """Requests that arrive at random; every third one cancels, before its first token or later.

    Times are multiples of 2**-10, so that their differences are exact: a TTFT can equal its target.
    The last event is a late cancellation, where there are some.
    """
    log, now = [], rng.uniform(0, 100)
    for number, request in enumerate(rng.sample(range(100), num_requests)):
        time_s = now = now + rng.expovariate(2)
        end, prompt = ("ends", "ends", "cancels")[number % 3], rng.randint(1, 500)
        counts = [*rng.choices((0, 1, 1, 2, 3), k=rng.randint(0, 9)), 1 + (number == 0)]
        if number == 1:
            counts = [1]
        if end == "cancels" and impatient:
            counts = []
        sent = [("sends", num) for num in [0, *counts]]
        for what, count in [("arrives", prompt), ("starts", prompt), *sent, (end, sum(counts))]:
            time_s += 3 * (what == "cancels")
            log.append((round(time_s * 1024) / 1024, request, what, count))
            time_s += rng.expovariate(20 if what == "sends" else 2)
    return sorted(log, key=lambda event: event[0])


def waits(log: Log) -> dict[int, Timing]:
    """A Timing for each request that ended."""
    begins = {request: at for at, request, what, _ in log if what == "arrives"}
    found = {request: Timing(begins[request]) for _, request, what, _ in log if what == "ends"}
    for at, request, what, count in log:
        if what == "sends" and request in found:
            found[request].token_s += [at] * count
    return found


def right(*args: Any) -> Any:
    """By labkit.serving's metrics."""
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


TIMING, SECONDS = "timing(arrival_s[request], token_s[request])", "log[-1][0] - log[0][0]"
# With a TTFT of its own, and the time of a request's first event of a kind.
TTFT = TIMING + " | {{'ttft_s': {} - {}}}"
FIRST = "next(at for at, *its, _ in log if its == [request, '{}'])"
TPOT, GAPS = "sum(itl_s) / len(itl_s) if itl_s else None", "zip(token_s, token_s[1:]"
WITH_FIRST, NEAREST = "zip([arrival_s, *token_s], token_s", "sorted(values)[place - 1]"
ENDS, ALL_GAPS = 'elif what == "ends":', '[gap for its in each for gap in its["itl_s"]]'
TOKENS, GOOD = 'sum(len(its["itl_s"]) + 1 for its in each)', "len(good) / seconds"
MISTAKES = [
    g.Mistake(
        "counts from the first pass, not from the arrival",
        "The user waits from the arrival on. Under load the queue is most of the time to first "
        "token, and a clock that starts behind it shows none of it.",
        [
            g.patch('what == "arrives"', 'what == "starts"'),
            g.patch(TIMING, TTFT.format("token_s[request][0]", FIRST.format("starts"))),
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
        [
            g.patch("[time_s] * count", f"[time_s] * {num}")
            for num in ("1", "min(count, 1)", "max(count, 1)")
        ],
        hint=2,
    ),
    g.Mistake(
        "has the first token among the gaps",
        "A gap is between two tokens, so n tokens have n - 1 gaps, and TPOT is the mean of these. "
        "The time before the first token is TTFT: it is much longer, and is in neither ITL nor "
        "TPOT.",
        [
            g.patch(GAPS, WITH_FIRST),
            g.patch(GAPS, WITH_FIRST, TPOT, TPOT.replace("itl_s", "itl_s[1:]")),
            *(
                g.patch(TPOT, mean + for_one)
                for mean in (
                    "(token_s[-1] - arrival_s) / len(token_s)",
                    "(token_s[-1] - arrival_s) / max(1, len(itl_s))",
                    "sum(itl_s) / len(token_s)",
                )
                for for_one in ("", " if itl_s else None")
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "counts cancelled requests",
        "A cancelled request is shorter than its client wanted, and would make the mean better. "
        "Only requests that ended count.",
        [
            g.patch(ENDS, 'elif what in ("ends", "cancels"):'),
            g.patch(ENDS, 'elif what in ("ends", "cancels") and token_s[request]:'),
            g.patch(TOKENS, 'sum(count for _, _, what, count in log if what == "sends")'),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes another percentile",
        "The percentile is one of the values, at place ceil(percent n / 100) from 1. It is not "
        "between two of them, as numpy has it, and not one place further or before.",
        [
            g.patch(NEAREST, "float(__import__('numpy').percentile(values, percent))"),
            g.patch(NEAREST, "[*sorted(values), max(values)][percent * len(values) // 100]"),
            g.patch(NEAREST, "sorted(values)[max(0, percent * len(values) // 100 - 1)]"),
            g.patch(NEAREST, "sorted(values)[round((len(values) - 1) * percent / 100)]"),
        ],
        hint=2,
    ),
    g.Mistake(
        "rounds up in floats",
        "14 / 100 * 50 is 7.000000000000001, and its ceil is 8. percent * n is a whole number: "
        "divide it last, as in -(-percent * n // 100).",
        [
            g.patch("-percent * len(values) // 100", f"int(-{product} // 1)")
            for product in ("len(values) / 100 * percent", "percent / 100 * len(values)")
        ],
        hint=3,
    ),
    g.Mistake(
        "has no single gaps in the percentile of ITL",
        "A mean per request hides stalls, and so does a percentile per request. Put the gaps of "
        "all requests into one list.",
        [
            g.patch(ALL_GAPS, "tpots"),
            g.patch(
                f"percentile({ALL_GAPS}, percent)",
                'sum(percentile(x["itl_s"], percent) for x in each if x["itl_s"]) / len(tpots)',
            ),
        ],
    ),
    g.Mistake(
        "does not ask each request for both targets",
        "A request is good if its own TTFT and its own TPOT meet the targets. One of the two is "
        "not enough, and neither is a percentile that meets them. One token has no TPOT, and "
        "cannot miss it.",
        [
            g.patch(' and (its["tpot_s"] or 0) <= tpot_s', ""),
            g.patch('(its["tpot_s"] or 0)', '(its["tpot_s"] or tpot_s + 1)'),
            g.patch('its["ttft_s"] <= ttft_s and ', ""),
        ],
        hint=2,
    ),
    g.Mistake(
        "does not divide by the time of the log",
        "Both rates are per second of the whole log, from its first event to its last, whatever "
        "these are. A share of the requests is no rate: a server that refuses most requests can "
        "have a share of 100%, and little goodput.",
        [
            g.patch(GOOD, "len(good) / len(each)"),
            g.patch(GOOD, 'len(good) / sum(what == "arrives" for _, _, what, _ in log)'),
            *(
                g.patch(SECONDS, time)
                for time in (
                    "log[-1][0]",
                    'log[-1][0] - next(at for at, _, what, _ in log if what == "starts")',
                    'max(at for at, _, what, _ in log if what == "ends") - log[0][0]',
                    'sum(its["end_to_end_s"] for its in each)',
                )
            ),
        ],
        hint=3,
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

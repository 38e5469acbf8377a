"""Grade serving_metrics: logs with queues, empty events, several tokens at once, cancellations."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, close, patch
from labkit.serving.metrics import Timing

Log = Sequence[tuple[float, int, str, int]]
FUNCTIONS = TIMINGS, PERCENTILE, REPORT = "timings", "percentile", "report"


def cases(draw: Draw) -> list[Case]:
    """Logs of a few requests, all percentiles that are asked for, reports with targets."""
    rng, asked = draw.rng, []
    logs = [a_log(draw, num_requests) for num_requests in (2, 5, 9, 20)]
    logs.append(a_log(draw, 12, impatient=True))
    for log in logs:
        asked.append(Case(f"a log of {len(log)} events", log, function=TIMINGS, known=TIMINGS))
    for n, percent in ((1, 50), (4, 50), (5, 50), (7, 90), (20, 95), (40, 5), (14, 50), (3, 100)):
        values = [rng.expovariate(1) for _ in range(n)]
        label = f"{n} values, {percent}%"
        asked.append(Case(label, values, percent, function=PERCENTILE, known=PERCENTILE))
    for log, percent in zip(logs, (50, 90, 20, 95, 50), strict=True):
        timings = list(waits(log).values())
        ttft_s = statistics.median_high(each.ttft_s for each in timings)
        tpot_s = statistics.mean(each.tpot_s or 0.1 for each in timings)
        label = f"a log of {len(log)} events, {percent}%, targets {ttft_s:.3g} s and {tpot_s:.3g} s"
        its = (log, percent, ttft_s, tpot_s)
        asked.append(Case(label, *its, function=REPORT, known=REPORT))
    return asked


def a_log(draw: Draw, num_requests: int, impatient: bool = False) -> Log:
    """Requests that arrive at random; every third one cancels, before its first token or later.

    Times are multiples of 2**-10, so that their differences are exact: a TTFT can equal its target.
    The last event is a late cancellation, where there are some.
    """
    rng, log, now = draw.rng, [], draw.rng.uniform(0, 100)
    for number, request in enumerate(rng.sample(range(100), num_requests)):
        time_s = now = now + rng.expovariate(2)
        does_cancel, prompt = number % 3 == 2, rng.randint(1, 500)
        counts = [*rng.choices((0, 1, 1, 2, 3), k=rng.randint(0, 9)), 1 + (number == 0)]
        if number == 1:
            counts = [1]
        if does_cancel and impatient:
            counts = []
        events = [("arrives", prompt), ("starts", prompt), *(("sends", n) for n in [0, *counts])]
        for what, count in [*events, ("cancels" if does_cancel else "ends", sum(counts))]:
            time_s += 3 * (what == "cancels")
            log.append((round(time_s * 1024) / 1024, request, what, count))
            time_s += rng.expovariate(20 if what == "sends" else 2)
    return sorted(log, key=lambda event: event[0])


def waits(
    log: Log, begin: str = "arrives", tokens: Callable[[int], int] = lambda count: count
) -> dict[int, Timing]:
    """A Timing for each request that ended; a mistake replaces a rule."""
    begins = {request: at for at, request, what, _ in log if what == begin}
    found = {request: Timing(begins[request]) for _, request, what, _ in log if what == "ends"}
    for at, request, what, count in log:
        if what == "sends" and request in found:
            found[request].token_s += [at] * tokens(count)
    return found


def right(*args: Any, known: str) -> Any:
    """By labkit.serving's metrics, and by ranks from the top."""
    if known == TIMINGS:
        keys = ("ttft_s", "itl_s", "tpot_s", "end_to_end_s")
        return {r: {key: getattr(its, key) for key in keys} for r, its in waits(*args).items()}
    return nearest(*args) if known == PERCENTILE else report(*args)


def nearest(values: Sequence[float], percent: int) -> float:
    """The smallest value with enough values that are at most as large."""
    return min(x for x in values if 100 * sum(y <= x for y in values) >= percent * len(values))


def report(log: Log, percent: int, ttft_s: float, tpot_s: float) -> Mapping[str, float]:
    """All five numbers."""
    each = waits(log).values()
    return {
        "ttft_s": nearest([its.ttft_s for its in each], percent),
        "itl_s": nearest([gap for its in each for gap in its.itl_s], percent),
        "tpot_s": nearest([its.tpot_s for its in each if its.tpot_s is not None], percent),
        "throughput": rate(log, lambda its: len(its.token_s)),
        "goodput": rate(log, lambda its: its.ttft_s <= ttft_s and (its.tpot_s or 0) <= tpot_s),
    }


def rate(log: Log, of: Callable[[Timing], float]) -> float:
    """A sum over the requests that ended, per second of the log."""
    return sum(map(of, waits(log).values())) / span(log)


def span(log: Log) -> float:
    """Seconds from the first event to the last."""
    return log[-1][0] - log[0][0]


def between(values: Sequence[float], percent: int) -> float:
    """The percentile as numpy has it: on the line between two neighbouring values."""
    ordered, place = sorted(values), (len(values) - 1) * percent / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (place % 1) * (high - low)


def by_place(of: Callable[[int, int], int]) -> Callable[..., float]:
    """A formula of a percentile: the value at this place from 0, of n values and percent."""
    return lambda values, percent: sorted(values)[min(len(values) - 1, of(len(values), percent))]


def of_each(key: str, *formulas: Callable[[Timing], Any], **rule: Any) -> Callable[..., bool]:
    """A predicate of timings: this key is wrong, and a formula of each request's Timing gives it.

    Wrong gaps make other keys wrong, too: then only the gaps are asked for.
    """

    def is_wrong(s: Observed, key: str) -> bool:
        return any(not close(s.y[request][key], its[key]) for request, its in s.right[0].items())

    def seen(s: Observed) -> bool:
        if s.case.function != TIMINGS or not is_wrong(s, key):
            return False
        got = {request: its[key] for request, its in s.y.items()}
        timings = waits(s.xs, **rule).items()
        return (key == "itl_s" or not is_wrong(s, "itl_s")) and any(
            close(got, {request: of(its) for request, its in timings}) for of in formulas
        )

    return seen


def reports(key: str, *formulas: Callable[..., float]) -> Callable[[Observed], bool]:
    """A predicate of report: this number is wrong, and a formula gives it."""
    return lambda s: (
        s.case.function == REPORT
        and not close(s.y[key], s.right[0][key])
        and any(close(s.y[key], of(*s.args)) for of in formulas)
    )


def divides_by(key: str, *others: Callable[[Log], float]) -> Callable[[Observed], bool]:
    """A predicate of report: this rate is divided by something else than the log's seconds."""

    def wrong(other: Callable[[Log], float]) -> Callable[..., float]:
        return lambda log, *its: report(log, *its)[key] * span(log) / other(log)

    return reports(key, *map(wrong, others))


def at(log: Log, event: str) -> list[float]:
    """The times of all events of a kind."""
    return [time_s for time_s, _, what, _ in log if what == event]


def of_all(log: Log, *_: float) -> float:
    """The throughput if cancelled answers count, too."""
    return sum(count for *_, what, count in log if what in ("ends", "cancels")) / span(log)


WITH_FIRST = [
    lambda its: its.end_to_end_s / len(its.token_s),
    lambda its: its.end_to_end_s / max(1, len(its.itl_s)),
    lambda its: sum(its.itl_s) / len(its.token_s),
]
MISTAKES = [
    Mistake(
        "counts from the first pass, not from the arrival",
        "The user waits from the arrival on. Under load the queue is most of the time to first "
        "token, and a clock that starts behind it shows none of it.",
        hint=3,
        seen=of_each("ttft_s", lambda its: its.ttft_s, begin="starts"),
        made_by=patch('what == "arrives"', 'what == "starts"'),
    ),
    Mistake(
        "takes an empty event for the first token",
        "A stream opens with an event that holds no token. TTFT ends with the first event whose "
        "count is above 0.",
        hint=2,
        seen=of_each("ttft_s", lambda its: its.ttft_s, tokens=lambda count: 1),
        made_by=patch(
            "timing(arrival_s[request], token_s[request]) for request in ended",
            "timing(arrival_s[request], token_s[request]) | {'ttft_s': next(at for at, one, what, _"
            " in log if (one, what) == (request, 'sends')) - arrival_s[request]} for request in "
            "ended",
        ),
    ),
    Mistake(
        "counts events of the stream as tokens",
        "An event can hold several tokens: of a speculative pass, or of a busy client's buffer. "
        "There are count - 1 gaps of 0 between them. An empty event holds none.",
        hint=2,
        seen=lambda s: any(
            of_each("itl_s", lambda its: its.itl_s, tokens=tokens)(s)
            for tokens in (lambda count: 1, lambda n: min(n, 1), lambda n: max(n, 1))
        ),
        made_by=patch("[time_s] * count", "[time_s] * min(count, 1)"),
    ),
    Mistake(
        "has the time to the first token among the gaps",
        "A gap is between two tokens, so n tokens have n - 1 gaps. The time before the first is "
        "TTFT. It is much longer, and would be all that a percentile of ITL shows.",
        seen=of_each("itl_s", lambda its: [its.ttft_s, *its.itl_s]),
        made_by=patch(
            "zip(token_s, token_s[1:], strict=False)",
            "zip([arrival_s, *token_s], token_s, strict=False)",
        ),
    ),
    Mistake(
        "has the first token in TPOT",
        "TPOT is the mean gap: the time from the first token to the last, divided by the n - 1 "
        "gaps. The time to the first token is not in it, and n counts one gap too many.",
        hint=2,
        seen=of_each(
            "tpot_s",
            *WITH_FIRST,
            *(lambda its, of=of: of(its) if its.itl_s else None for of in WITH_FIRST),
        ),
        made_by=patch("sum(itl_s) / len(itl_s) if itl_s else None", "sum(itl_s) / len(token_s)"),
    ),
    Mistake(
        "counts cancelled requests",
        "A cancelled request is shorter than its client wanted, and would make the mean better. "
        "Only requests that ended count.",
        hint=3,
        seen=lambda s: (
            s.y.keys() > s.right[0].keys()
            if s.case.function == TIMINGS
            else reports("throughput", of_all)(s)
        ),
        made_by=patch('what == "ends"', 'what in ("ends", "cancels")'),
    ),
    Mistake(
        "takes another percentile",
        "The percentile is one of the values, at place ceil(percent n / 100) from 1. It is not "
        "between two of them, as numpy has it, and not one place further or before.",
        hint=2,
        function=PERCENTILE,
        formula=[
            between,
            by_place(lambda n, percent: percent * n // 100),
            by_place(lambda n, percent: max(0, percent * n // 100 - 1)),
            by_place(lambda n, percent: round((n - 1) * percent / 100)),
        ],
        made_by=patch("place - 1]", "min(percent * len(values) // 100, len(values) - 1)]"),
    ),
    Mistake(
        "rounds up in floats",
        "14 / 100 * 50 is 7.000000000000001, and its ceil is 8. percent * n is a whole number: "
        "divide it last, as in -(-percent * n // 100).",
        hint=3,
        function=PERCENTILE,
        formula=by_place(lambda n, percent: math.ceil(n / 100 * percent) - 1),
        made_by=patch("-percent * len(values) // 100", "int(-len(values) / 100 * percent // 1)"),
    ),
    Mistake(
        "has no single gaps in the percentile of ITL",
        "A mean per request hides stalls, and so does a percentile per request. Put the gaps of "
        "all requests into one list.",
        seen=reports(
            "itl_s",
            lambda log, percent, *_: nearest(
                [its.tpot_s for its in waits(log).values() if its.itl_s], percent
            ),
            lambda log, percent, *_: statistics.mean(
                nearest(its.itl_s, percent) for its in waits(log).values() if its.itl_s
            ),
        ),
        made_by=patch('[gap for its in each for gap in its["itl_s"]]', "tpots"),
    ),
    Mistake(
        "does not ask each request for both targets",
        "A request is good if its own TTFT and its own TPOT meet the targets. One of the two is "
        "not enough, and neither is a percentile that meets them.",
        hint=2,
        seen=reports(
            "goodput",
            lambda log, _, ttft_s, tpot_s: rate(log, lambda its: its.ttft_s <= ttft_s),
            lambda log, _, ttft_s, tpot_s: rate(log, lambda its: (its.tpot_s or 0) <= tpot_s),
        ),
        made_by=patch(' and (its["tpot_s"] or 0) <= tpot_s', ""),
    ),
    Mistake(
        "gives the share of requests that meet the targets",
        "Goodput is a rate: requests per second. A server that refuses most of its requests can "
        "have a share of 100%, and little goodput.",
        seen=divides_by(
            "goodput", lambda log: len(at(log, "ends")), lambda log: len(at(log, "arrives"))
        ),
        made_by=patch("len(good) / seconds", "len(good) / len(each)"),
    ),
    Mistake(
        "divides by another time",
        "Both rates are by the time of the whole log: from its first event to its last, whatever "
        "these are.",
        hint=3,
        seen=divides_by(
            "throughput",
            lambda log: log[-1][0],
            lambda log: log[-1][0] - at(log, "starts")[0],
            lambda log: at(log, "ends")[-1] - log[0][0],
            lambda log: sum(its.end_to_end_s for its in waits(log).values()),
        ),
        made_by=patch("log[-1][0] - log[0][0]", "log[-1][0]"),
    ),
]

GRADER = Questions(
    name="serving_metrics",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    shown="each measure is what its name says, in logs with queues, empty events, several tokens "
    "at once and clients that give up",
)

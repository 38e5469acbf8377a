"""Grade serving_metrics: logs with queues, empty events, several tokens at once, cancellations."""

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
    logs = [a_log(draw, num_requests, patience=1) for num_requests in (2, 5, 9, 20)]
    logs.append(a_log(draw, 12, patience=0))
    for log in logs:
        asked.append(Case(f"a log of {len(log)} events", log, function=TIMINGS, known=TIMINGS))
    for n, percent in ((1, 50), (4, 50), (5, 50), (7, 90), (20, 99), (20, 95), (40, 5), (3, 100)):
        values = [rng.expovariate(1) for _ in range(n)]
        label = f"{n} values, {percent}%"
        asked.append(Case(label, values, percent, function=PERCENTILE, known=PERCENTILE))
    for log in logs:
        percent, timings = rng.choice((50, 90, 95)), list(waits(log).values())
        ttft_s = statistics.median(each.ttft_s for each in timings) * rng.uniform(1.1, 1.6)
        tpot_s = statistics.mean(each.tpot_s or 0.1 for each in timings)
        label = f"a log of {len(log)} events, {percent}%, targets {ttft_s:.3g} s and {tpot_s:.3g} s"
        its = (log, percent, ttft_s, tpot_s)
        asked.append(Case(label, *its, function=REPORT, known=REPORT))
    return asked


def a_log(draw: Draw, num_requests: int, patience: int) -> Log:
    """Requests that arrive at random. patience: the tokens that one which cancels has at least."""
    rng, log, now = draw.rng, [], draw.rng.uniform(0, 100)
    for request in rng.sample(range(100), num_requests):
        now += rng.expovariate(2)
        prompt, sent, time_s = rng.randint(1, 500), 0, now
        log.append((time_s, request, "arrives", prompt))
        does_cancel = len(log) > 20 and rng.random() < 0.3
        wanted = rng.randint(patience, 6) if does_cancel else rng.choice((1, 2, 6, 9, 14))
        for what in ("starts", "opens", *["sends"] * 20, "ends"):
            time_s += rng.expovariate(2 if what in ("starts", "opens") else 20)
            count = min(wanted - sent, rng.choice((0, 1, 1, 2, 3)))
            if what == "starts":
                log.append((time_s, request, what, prompt))
            elif what == "opens":
                log.append((time_s, request, "sends", 0))
            elif sent < wanted:
                log.append((time_s, request, "sends", count))
                sent += count
        log.append((time_s, request, "cancels" if does_cancel else "ends", sent))
    return sorted(log)


def waits(
    log: Log,
    begin: str = "arrives",
    ends: Sequence[str] = ("ends",),
    tokens: Callable[[int], int] = lambda count: count,
) -> dict[int, Timing]:
    """A Timing for each request that ended; a mistake replaces a rule."""
    return {
        request: Timing(
            next(at for at, other, event, _ in log if (other, event) == (request, begin)),
            [
                at
                for at, other, event, count in log
                if (other, event) == (request, "sends")
                for _ in range(tokens(count))
            ],
        )
        for _, request, what, _ in log
        if what in ends
    }


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
    each, seconds = waits(log).values(), log[-1][0] - log[0][0]
    good = sum(its.ttft_s <= ttft_s and (its.tpot_s or 0) <= tpot_s for its in each)
    return {
        "ttft_s": nearest([its.ttft_s for its in each], percent),
        "itl_s": nearest([gap for its in each for gap in its.itl_s], percent),
        "tpot_s": nearest([its.tpot_s for its in each if its.tpot_s is not None], percent),
        "throughput": sum(len(its.token_s) for its in each) / seconds,
        "goodput": good / seconds,
    }


def of_each(key: str, *formulas: Callable[[Timing], Any], **rule: Any) -> Callable[..., bool]:
    """A predicate: this key of timings is wrong, and what a formula makes of each Timing."""

    def seen(s: Observed) -> bool:
        return s.case.function == TIMINGS and any(
            is_wrong(s, key) and close([its[key] for its in s.y.values()], list(map(of, timings)))
            for timings in ([waits(s.xs, **rule)[request] for request in s.y],)
            for of in formulas
        )

    return seen


def is_wrong(s: Observed, key: str) -> bool:
    """Whether a request's value of this key is not the right one."""
    return any(not close(s.y[request][key], its[key]) for request, its in s.right[0].items())


def gaps_are_right(s: Observed) -> bool:
    """Whether ITL is right, so that another key is to blame."""
    return not is_wrong(s, "itl_s")


def reports(key: str, *formulas: Callable[..., float]) -> Callable[[Observed], bool]:
    """A predicate: this number of the report is wrong, and a formula gives it."""
    return lambda s: (
        s.case.function == REPORT
        and not close(s.y[key], s.right[0][key])
        and any(close(float(s.y[key]), float(of(*s.args))) for of in formulas)
    )


def interpolated(values: Sequence[float], percent: int) -> float:
    """As numpy's percentile."""
    place, ordered = (len(values) - 1) * percent / 100, sorted(values)
    low = min(int(place), len(values) - 2) if len(values) > 1 else 0
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(values) - 1)] - ordered[low])


def seconds_of(log: Log) -> float:
    """From the first event to the last."""
    return log[-1][0] - log[0][0]


PLACE = "sorted(values)[place - 1]"
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
        seen=lambda s: (
            gaps_are_right(s)
            and of_each("ttft_s", lambda its: its.ttft_s, tokens=lambda count: 1)(s)
        ),
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
            for tokens in (lambda count: 1, lambda count: min(count, 1))
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
        seen=lambda s: (
            gaps_are_right(s)
            and of_each(
                "tpot_s",
                lambda its: its.end_to_end_s / len(its.token_s),
                lambda its: sum(its.itl_s) / len(its.token_s),
                lambda its: sum(its.itl_s) / len(its.token_s) if its.itl_s else None,
            )(s)
        ),
        made_by=patch("sum(itl_s) / len(itl_s) if itl_s else None", "sum(itl_s) / len(token_s)"),
    ),
    Mistake(
        "counts cancelled requests",
        "A cancelled request is shorter than its client wanted, and would make the mean better. "
        "Only requests that ended count.",
        hint=3,
        seen=lambda s: s.case.function == TIMINGS and s.y.keys() > s.right[0].keys(),
        made_by=patch('what == "ends"', 'what in ("ends", "cancels")'),
    ),
    Mistake(
        "takes another percentile",
        "The percentile is one of the values, at place ceil(percent n / 100) from 1. It is not "
        "between two of them, as numpy has it, and not one place further.",
        hint=2,
        function=PERCENTILE,
        formula=[
            interpolated,
            lambda values, percent: sorted(values)[
                min(len(values) - 1, percent * len(values) // 100)
            ],
            lambda values, percent: sorted(values)[round((len(values) - 1) * percent / 100)],
        ],
        made_by=patch(PLACE, "sorted(values)[min(percent * len(values) // 100, len(values) - 1)]"),
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
        "counts tokens that no user got",
        "Throughput has tokens of answers that ended, the first one of each included. Prompts are "
        "read in large pieces, so with them the number looks several times as good.",
        hint=3,
        seen=reports(
            "throughput",
            lambda log, *_: (
                sum(n for *_, what, n in log if what in ("starts", "sends")) / seconds_of(log)
            ),
            lambda log, *_: sum(n for *_, what, n in log if what == "sends") / seconds_of(log),
            lambda log, *_: sum(len(its.itl_s) for its in waits(log).values()) / seconds_of(log),
        ),
        made_by=patch(
            'sum(len(its["itl_s"]) + 1 for its in each)',
            'sum(n for *_, what, n in log if what in ("starts", "sends"))',
        ),
    ),
    Mistake(
        "does not ask each request for both targets",
        "A request is good if its own TTFT and its own TPOT meet the targets. One of the two is "
        "not enough, and neither is a percentile that meets them.",
        hint=2,
        seen=reports(
            "goodput",
            lambda log, percent, ttft_s, tpot_s: (
                sum(its.ttft_s <= ttft_s for its in waits(log).values()) / seconds_of(log)
            ),
            lambda log, percent, ttft_s, tpot_s: (
                sum((its.tpot_s or 0) <= tpot_s for its in waits(log).values()) / seconds_of(log)
            ),
        ),
        made_by=patch(' and (its["tpot_s"] or 0) <= tpot_s', ""),
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

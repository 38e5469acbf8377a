"""Latency against throughput: one trace of requests at increasing rates of arrival.

    measured = labkit.measure.serving(model, partial(continuous, max_running=8))
    print(measured.table())
    measured.show()

    load  0.25  |x   x    x  x     x    x |           requests arrive rarely: most passes have one
    load  0.9   |xx x xx xx|                          they share passes: more tokens per second
    load  1.2   |xxxxxxxx|                            faster than they are served: the queue grows

A load of 1 is the rate at which requests are served if all of them are there from the start.
Each load is measured, and predicted beside it: see pass_times.py. Requests arrive at random moments
whether or not the engine keeps up (an open loop, see serving/requests.py), in each load the same
requests in the same order. Their answers do not depend on the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from labkit.calc import PassTime
from labkit.calc.units import seconds_text
from labkit.measure.measured import aligned
from labkit.measure.pass_times import RecordedEngine, fit_pass_time, predict
from labkit.model import GPT
from labkit.serving import (
    Arrival,
    Decoder,
    Engine,
    PagedCache,
    Timing,
    percentile,
    poisson_trace,
    replay,
    throughput,
)
from labkit.serving.scheduler import Scheduler

if TYPE_CHECKING:
    from labkit.viz.picture import Picture

LOADS = (0.25, 0.5, 0.75, 0.9, 1.1, 1.5)
_ALONE = 8


class Latencies(NamedTuple):
    """Latencies of the users of one load. Percentiles of TTFT are over requests, of ITL over
    gaps."""

    tokens_per_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    itl_p50_s: float
    itl_p99_s: float

    @classmethod
    def of(cls, timings: Sequence[Timing]) -> Latencies:
        """Return the latencies of a replayed trace. At least one answer has two tokens."""
        ttft_s = [timing.ttft_s for timing in timings]
        itl_s = [gap for timing in timings for gap in timing.itl_s]
        return cls(
            throughput(timings),
            *(percentile(ttft_s, percent) for percent in (50, 90)),
            *(percentile(itl_s, percent) for percent in (50, 99)),
        )


class Load(NamedTuple):
    """A rate of arrivals. share: of the highest rate at which requests are served."""

    share: float
    requests_per_s: float
    measured: Latencies
    predicted: Latencies


@dataclass(frozen=True)
class ArrivalSweep:
    """Every load, and the time of a pass, which gives the predictions."""

    loads: tuple[Load, ...]
    pass_time: PassTime

    def table(self) -> str:
        """Write a row for each load, measured / predicted, as aligned plain text."""
        rows = [["load", "requests/s", "tokens/s", "TTFT p50", "TTFT p90", "ITL p50", "ITL p99"]]
        for load in self.loads:
            pairs = zip(load.measured, load.predicted, strict=True)
            (got, expected), *latencies = pairs
            rows.append(
                [
                    f"{load.share:g}",
                    f"{load.requests_per_s:.3g}",
                    f"{got:.3g} / {expected:.3g}",
                    *(" / ".join(map(seconds_text, pair)) for pair in latencies),
                ]
            )
        fixed, token, cached = map(seconds_text, self.pass_time)
        return (
            f"a pass: {fixed} + {token} per new token + {cached} per cached token\n"
            f"measured / predicted\n{aligned(rows, left=0)}"
        )

    def draw(self, title: str = "latency against throughput") -> Picture:
        """TTFT and ITL over tokens per second, with their predictions."""
        from labkit.viz.serving import latency_throughput  # viz loads matplotlib

        names = {"TTFT, 90th percentile": "ttft_p90_s", "ITL, 99th percentile": "itl_p99_s"}
        measured, predicted = (
            {
                name: [(each.tokens_per_s, getattr(each, field)) for each in by_load]
                for name, field in names.items()
            }
            for by_load in (
                [load.measured for load in self.loads],
                [load.predicted for load in self.loads],
            )
        )
        return latency_throughput(measured, predicted, title=title)

    def show(self) -> None:
        """Show the picture: in the notebook, or, outside of one, as a file."""
        self.draw().show()


def serving(
    model: GPT,
    scheduler: Scheduler,
    loads: Sequence[float] = LOADS,
    *,
    trace: Sequence[Arrival] | None = None,
    num_pages: int = 64,
) -> ArrivalSweep:
    """Serve one trace at several loads, each measured and predicted.

    trace: its times are stretched or compressed to each load; None: 40 requests of
    `poisson_trace`. Answers have two tokens or more, at least one. num_pages: of the PagedCache.
    """
    trace = trace or poisson_trace(40, 1.0, vocab=model.config.vocab)
    decoder = Decoder(model)

    def make_cache() -> PagedCache:
        return PagedCache(model.config, num_pages)

    for _ in range(2):  # the first one warms up
        recorded = RecordedEngine(decoder, make_cache(), scheduler)
        answers = recorded.generate(arrival.request for arrival in trace)
    most_per_s = len(trace) / sum(recorded.seconds)
    for arrival in trace[:_ALONE]:  # passes of one token, for the fit
        recorded.generate([arrival.request])
    pass_time = fit_pass_time(recorded.passes, recorded.seconds)
    rate = len(trace) / trace[-1].at_s
    found = []
    for share in loads:
        factor = rate / (share * most_per_s)
        arrivals = [Arrival(at_s * factor, request) for at_s, request in trace]
        measured = replay(Engine(decoder, make_cache(), scheduler), arrivals)
        predicted = predict(decoder, make_cache(), scheduler, arrivals, answers, pass_time)
        of_both = Latencies.of(measured), Latencies.of(predicted)
        found.append(Load(share, share * most_per_s, *of_both))
    return ArrivalSweep(tuple(found), pass_time)

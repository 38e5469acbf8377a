"""Latencies that users see: TTFT, TPOT, ITL, end to end, percentiles, throughput and goodput.

    arrival      token 1   token 2            token 3   token 4        last
    |---- TTFT ----|-- ITL --|------- ITL -------|-- ITL --|
    |---------------------- end to end --------------------|      TPOT = (last - first) / 3

Each is defined once, here, and its docstring names the usual confusion. `replay` serves a trace and
records the times.

Papers: Zhong et al., "DistServe", OSDI 2024 (goodput); Agrawal et al., "Sarathi-Serve", OSDI 2024
(stalls that averages hide).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labkit.serving.requests import Arrival

if TYPE_CHECKING:
    from labkit.serving.serving_engine import EngineClient


@dataclass
class Timing:
    """Arrival of a request and of each token of its answer, in seconds of one clock.

    The tokens are those that the engine returned. Encoding the answer's text again can give another
    number, because several sequences of tokens have the same text.
    """

    arrival_s: float
    token_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """Time to first token: from arrival to the first token.

        Confusion: from admission. The wait in the queue counts, too: under load it is most of it.
        """
        return self.token_s[0] - self.arrival_s

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: each gap between two tokens. One token: none.

        Confusion: with the time to the first token among them. It is a gap to the arrival, often
        ten times as long as the others, and no user sees it as a stall.
        """
        return [
            after - before for before, after in zip(self.token_s, self.token_s[1:], strict=False)
        ]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: the mean gap of this request; None for a single token.

        Confusion: end to end divided by the number of tokens, which contains the first token's
        time. And with ITL: a stall of one second in an answer of 100 tokens adds 10 ms to its TPOT.
        Percentiles of TPOT are over requests. Those of ITL are over gaps: long answers count more.
        """
        num_gaps = len(self.token_s) - 1
        return (self.token_s[-1] - self.token_s[0]) / num_gaps if num_gaps else None

    @property
    def end_to_end_s(self) -> float:
        """From arrival to the last token: TTFT + TPOT * (tokens - 1).

        Confusion: TTFT + TPOT * tokens. The first token has no gap before it.
        """
        return self.token_s[-1] - self.arrival_s


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest of these values such that `percent` % of them are at most as large.

    Confusion: the mean of several percentiles, of replicas for instance, is not a percentile of
    all. Put the values together first. And the 99th percentile of 20 values is their maximum.
    """
    ordered = sorted(values)
    # Not percent / 100 * n: 55 / 100 * 100 is a little more than 55.
    return ordered[max(0, math.ceil(percent * len(ordered) / 100) - 1)]


def throughput(timings: Sequence[Timing]) -> float:
    """Tokens of answers per second, from the first arrival to the last token.

    Confusion: with the tokens of prompts, which are much faster to compute. And the mean of the
    requests' own rates, which is what one user sees.
    """
    return sum(len(timing.token_s) for timing in timings) / _seconds(timings)


def goodput(timings: Sequence[Timing], *, ttft_s: float, tpot_s: float) -> float:
    """Requests per second that met both targets.

    Confusion: with throughput, which grows with the load until everyone waits too long; goodput
    falls then. And targets met by a mean: here each request meets both, or does not count.
    """
    good = [each for each in timings if each.ttft_s <= ttft_s and (each.tpot_s or 0) <= tpot_s]
    return len(good) / _seconds(timings)


def replay(
    engine: EngineClient,
    trace: Iterable[Arrival],
    *,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Timing]:
    """Serve a trace to its end, and return a Timing per request, in the trace's order.

    A request arrives at the trace's time, although the engine takes it only after its current pass.
    Confusion: to count from when the engine takes it, which hides the wait for a long pass
    (coordinated omission). now, sleep: another clock, such as one that a test sets.
    RuntimeError: a request ends with an error.
    """
    begin_s, timings = now(), {}
    coming = deque(trace)
    while coming or engine.has_work:
        while coming and coming[0].at_s <= now() - begin_s:
            arrival = coming.popleft()
            timings[engine.add(arrival.request)] = Timing(arrival.at_s)
        if not engine.has_work:
            sleep(max(0.0, coming[0].at_s - (now() - begin_s)))
        for output in engine.step():
            output.required_token()
            timings[output.id].token_s.append(now() - begin_s)
    return list(timings.values())


def _seconds(timings: Sequence[Timing]) -> float:
    first_s = min(timing.arrival_s for timing in timings)
    return max(timing.token_s[-1] for timing in timings) - first_s

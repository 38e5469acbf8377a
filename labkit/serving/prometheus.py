"""What a server measures, in Prometheus' text format.

    labkit_time_to_first_token_seconds_bucket{le="0.01"} 3      3 requests waited 10 ms or less
    labkit_time_to_first_token_seconds_bucket{le="0.025"} 9     these 3, and 6 more
    labkit_requests_waiting 4

Prometheus reads the page every few seconds. Buckets are counts, so those of several replicas can
be added, and percentiles estimated from the sums; percentiles of replicas cannot be averaged.

The measures are those of metrics.py. https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from labkit.serving.metrics import Timing
from labkit.serving.serving_engine import EngineClient

BOUNDS_S = (*(m * 10.0**e for e in (-3, -2, -1, 0) for m in (1, 2.5, 5)), 10.0, math.inf)
ENDS = ("stop", "length", "cancelled", "refused", "error")  # of requests


class Histogram:
    """How many values are at most each bound, and their sum."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * len(BOUNDS_S), 0.0

    def observe(self, value: float) -> None:
        """Count a value in the bucket with the smallest bound that is not below it."""
        self.counts[bisect_left(BOUNDS_S, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        """One line per bucket, each with all values of the buckets before it; then the sums."""
        total = 0
        for bound, count in zip(BOUNDS_S, self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if bound == math.inf else f"{bound:g}"}"}} {total}'
        yield f"{name}_sum {self.sum}"
        yield f"{name}_count {total}"


class ServerMetrics:
    """Latencies, tokens and ends of requests since the start; the engine after its last pass."""

    def __init__(self, engine: EngineClient) -> None:
        self._num_pages = engine.num_free_pages
        self.ttft, self.itl = Histogram(), Histogram()
        self.num_prompt_tokens, self.num_answer_tokens = 0, 0
        self.ends = Counter(dict.fromkeys(ENDS, 0))
        self.look_at(engine)

    def count_token(self, timing: Timing, now_s: float) -> None:
        """A request has one more token."""
        timing.token_s.append(now_s)
        self.num_answer_tokens += 1
        if len(timing.token_s) == 1:
            self.ttft.observe(timing.ttft_s)
        else:
            self.itl.observe(now_s - timing.token_s[-2])

    def look_at(self, engine: EngineClient) -> None:
        """Note the engine's state after a pass; only its own thread may look at it."""
        self._now = {
            "requests_running gauge": len(engine.running),
            "requests_waiting gauge": len(engine.waiting),
            "cache_pages gauge": self._num_pages,
            "cache_pages_free gauge": engine.num_free_pages,
            "preemptions_total counter": engine.counts["preemptions"],
            "prompt_tokens_cached_total counter": engine.counts["prompt_tokens_cached"],
        }

    def __str__(self) -> str:
        families: dict[str, Histogram | Counter[str] | int] = {
            "time_to_first_token_seconds histogram": self.ttft,
            "inter_token_latency_seconds histogram": self.itl,
            "prompt_tokens_total counter": self.num_prompt_tokens,
            "answer_tokens_total counter": self.num_answer_tokens,
            "requests_total counter": self.ends,
            **self._now,
        }
        lines = []
        for family, value in families.items():
            name = f"labkit_{family.split()[0]}"
            lines.append(f"# TYPE labkit_{family}")
            if isinstance(value, Histogram):
                lines += value.lines(name)
            elif isinstance(value, Counter):
                lines += [f'{name}{{end="{end}"}} {count}' for end, count in sorted(value.items())]
            else:
                lines.append(f"{name} {value}")
        return "\n".join([*lines, ""])

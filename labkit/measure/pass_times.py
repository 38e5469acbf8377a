"""Times of passes on this machine, and latencies predicted from them.

    engine = RecordedEngine(Decoder(model), PagedCache(...), scheduler)
    timings = replay(engine, trace)                                   measured
    fitted = fit_pass_time(engine.passes, engine.seconds)
    timings = predict(engine.decoder, cache, scheduler, trace, answers, fitted)

    seconds of a step = fixed + token * new tokens + cached * tokens that are in the cache

The prediction runs the real scheduler and cache without the model: a pass gives the recorded tokens
and takes the fitted time, on a simulated clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.calc import PassTime
from labkit.serving import Arrival, Decoder, Engine, Output, ScheduledTokens, Timing, replay
from labkit.serving.caches import KVCache
from labkit.serving.scheduler import Scheduler

_ROUNDS, _CLOSE = 20, 1e-3


class RecordedEngine(Engine):
    """An engine that records the batch of each pass, and the seconds of each step.

    passes: the batch of each pass; `viz.passes` draws them. seconds: of each step, with the
    scheduler and the sampling.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, scheduler: Scheduler) -> None:
        self.passes: list[list[ScheduledTokens]] = []
        self.seconds: list[float] = []
        super().__init__(_Noting(decoder, self.passes), cache, scheduler)

    def step(self) -> list[Output]:
        """Like Engine."""
        began_s = time.perf_counter()
        outputs = super().step()
        if len(self.passes) > len(self.seconds):
            self.seconds.append(time.perf_counter() - began_s)
        return outputs


class _Noting(Decoder):
    """Appends the batch of each pass to a list."""

    def __init__(self, decoder: Decoder, passes: list[list[ScheduledTokens]]) -> None:
        super().__init__(decoder.model)
        self.decoder, self.passes = decoder, passes

    def __call__(self, batch: Sequence[ScheduledTokens], cache: KVCache) -> Tensor:
        logits_SV = self.decoder(batch, cache)
        self.passes.append(list(batch))
        return logits_SV


def fit_pass_time(
    passes: Sequence[Sequence[ScheduledTokens]], seconds: Sequence[float]
) -> PassTime:
    """Fit the three numbers, none below 0, with the least sum of |fitted - measured| seconds.

    Like a median, this fit does not move with a few passes that the machine disturbed. Give passes
    of one token and of many. ValueError: fewer than three passes.
    """
    if len(passes) < 3:
        raise ValueError(f"{len(passes)} passes do not determine three numbers; record some more")
    seconds_n1 = torch.tensor(seconds, dtype=torch.float64)[:, None]
    terms_n3 = torch.tensor([[1, *_work(batch)] for batch in passes], dtype=torch.float64)
    fits = [
        _least_deviation(terms_n3, seconds_n1, list(used))
        for num in (1, 2, 3)
        for used in itertools.combinations(range(3), num)
    ]
    allowed_31 = [fit for fit in fits if (fit >= 0).all()]
    best_31 = min(allowed_31, key=lambda fit: float((terms_n3 @ fit - seconds_n1).abs().sum()))
    return PassTime(*best_31.flatten().tolist())


def _work(batch: Sequence[ScheduledTokens]) -> tuple[int, int]:
    """Return the new tokens of a pass, and the tokens cached before it."""
    return sum(len(entry.tokens) for entry in batch), sum(entry.start for entry in batch)


def _least_deviation(terms_n3: Tensor, seconds_n1: Tensor, used: list[int]) -> Tensor:
    """Return factors of these columns with the least sum of |terms @ factors - seconds|.

    Other factors are 0. It repeats least squares, with each row weighted by 1 / its last deviation.
    """
    factors_31 = torch.zeros(3, 1, dtype=torch.float64)
    weights_n1 = torch.ones_like(seconds_n1)
    for _ in range(_ROUNDS):
        rows_nu, targets_n1 = weights_n1 * terms_n3[:, used], weights_n1 * seconds_n1
        factors_31[used] = torch.linalg.lstsq(rows_nu, targets_n1, driver="gelsd").solution
        deviations_n1 = (terms_n3 @ factors_31 - seconds_n1).abs()
        weights_n1 = deviations_n1.clamp(min=_CLOSE * float(seconds_n1.median())).rsqrt()
    return factors_31


class _FittedDecoder(Decoder):
    """Gives recorded tokens, and moves a clock on by the time of a pass."""

    def __init__(
        self,
        decoder: Decoder,
        trace: Sequence[Arrival],
        answers: Sequence[Sequence[int]],
        pass_time: PassTime,
    ) -> None:
        super().__init__(decoder.model)
        self.tokens = [
            [*arrival.request.prompt, *answer]
            for arrival, answer in zip(trace, answers, strict=True)
        ]
        self.pass_time, self.now_s = pass_time, 0.0

    def __call__(self, batch: Sequence[ScheduledTokens], cache: KVCache) -> Tensor:
        """Return logits that leave one choice: the recorded token."""
        cache.commit(batch)
        self.now_s += self.pass_time(*_work(batch))
        logits_SV = torch.full((len(batch), self.model.config.vocab), -torch.inf)
        for logits_V, entry in zip(logits_SV, batch, strict=True):
            logits_V[self.tokens[entry.sequence][entry.end]] = 0
        return logits_SV

    def sleep(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now_s += seconds


def predict(
    decoder: Decoder,
    cache: KVCache,
    scheduler: Scheduler,
    trace: Sequence[Arrival],
    answers: Sequence[Sequence[int]],
    pass_time: PassTime,
) -> list[Timing]:
    """Predict the timings that `replay` measures, if each pass takes the time by the formula.

    cache: an empty one. answers: of each request of the trace, as they were recorded; they do not
    depend on the traffic.
    """
    fitted = _FittedDecoder(decoder, trace, answers, pass_time)
    engine = Engine(fitted, cache, scheduler)
    return replay(engine, trace, now=lambda: fitted.now_s, sleep=fitted.sleep)

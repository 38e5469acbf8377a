"""Times of passes: the fit finds the numbers they were made of, and a prediction follows them."""

import random
from functools import partial

import pytest

from labkit import measure
from labkit.calc import PassTime
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Arrival,
    Decoder,
    PagedCache,
    Request,
    ScheduledTokens,
    continuous,
    poisson_trace,
    static_batches,
)

MADE = PassTime(2e-3, 1e-4, 1e-6)
MODEL = GPT(GPTConfig(vocab=16, context=128, num_layers=1, hidden=8, num_heads=1))
DECODER = Decoder(MODEL)


def made_up_passes(num=40):
    draw = random.Random(0)
    passes = [
        [
            ScheduledTokens(row, [0] * draw.choice((1, 1, 20)), draw.randrange(500))
            for row in range(batch)
        ]
        for batch in (draw.randint(1, 8) for _ in range(num))
    ]
    tokens = [sum(len(entry.tokens) for entry in batch) for batch in passes]
    cached = [sum(entry.start for entry in batch) for batch in passes]
    return passes, [MADE(*each) for each in zip(tokens, cached, strict=True)]


def test_the_fit_finds_the_numbers_though_a_quarter_of_the_passes_were_disturbed():
    passes, seconds = made_up_passes()
    disturbed = [each * (10 if index % 4 == 0 else 1) for index, each in enumerate(seconds)]
    fitted = measure.fit_pass_time(passes, disturbed)
    assert tuple(fitted) == pytest.approx(tuple(MADE), rel=1e-2)


def test_no_fitted_number_is_below_zero():
    passes, seconds = made_up_passes()
    falling = [1e-2 - each for each in seconds]
    assert min(measure.fit_pass_time(passes, falling)) >= 0


def test_two_passes_are_too_few():
    with pytest.raises(ValueError, match="2 passes"):
        measure.fit_pass_time(*(each[:2] for each in made_up_passes()))


TRACE = [
    Arrival(1.0, Request([1, 2, 3], max_new_tokens=9, stop=frozenset({7}))),
    Arrival(1.5, Request([4], max_new_tokens=2)),
]


@pytest.mark.parametrize(
    ("scheduler", "tokens_of_second"),
    # Passes take 1 s and 0.1 s for each token: from 1 to 2.3, to 3.5, to 4.6.
    [(continuous, [3.5, 4.7]), (static_batches, [5.6, 6.7])],
)
def test_a_prediction_is_the_schedulers_passes_by_the_formula(scheduler, tokens_of_second):
    by_formula = PassTime(1.0, 0.1, 0.0)
    cache, answers = PagedCache(MODEL.config, 8), [[5, 6, 7], [8, 9]]
    first, second = measure.predict(DECODER, cache, scheduler, TRACE, answers, by_formula)
    assert first.arrival_s == 1.0 and first.token_s[0] == pytest.approx(2.3)
    assert second.token_s == pytest.approx(tokens_of_second)


def test_a_recorded_engine_notes_each_pass():
    engine = measure.RecordedEngine(DECODER, PagedCache(MODEL.config, 8), continuous)
    engine.generate([Request([1, 2, 3], max_new_tokens=3), Request([4], max_new_tokens=2)])
    assert engine.step() == []  # no pass, so nothing is noted
    sizes = [[len(entry.tokens) for entry in batch] for batch in engine.passes]
    assert sizes == [[3, 1], [1, 1], [1]]
    assert len(engine.seconds) == 3


def test_a_sweep_has_each_load_measured_and_predicted():
    trace = poisson_trace(8, 1.0, vocab=16, mean_answer=4)
    sweep = measure.serving(MODEL, partial(continuous, max_running=4), (0.5, 2), trace=trace)
    low, high = sweep.loads
    assert high.requests_per_s == pytest.approx(4 * low.requests_per_s)
    assert high.predicted.tokens_per_s > low.predicted.tokens_per_s
    assert len(sweep.table().splitlines()) == 5
    measured = sweep.draw().axes[0].lines[0]
    rates = [load.measured.tokens_per_s for load in sweep.loads]
    assert list(measured.get_xdata()) == sorted(rates)

"""Each measure by hand, replayed traces on a clock of the test's own, and draws of tokens."""

import math
from collections import Counter
from functools import partial

import pytest
import torch

from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Arrival,
    Decoder,
    Engine,
    PagedCache,
    Request,
    Sampling,
    Timing,
    chunked_prefill,
    goodput,
    percentile,
    preempting,
    replay,
    throughput,
)
from labkit.serving.requests import sample


def test_each_measure_of_one_request():
    timing = Timing(1.0, [3.0, 3.5, 5.5, 6.0])
    assert timing.ttft_s == 2.0
    assert timing.itl_s == [0.5, 2.0, 0.5]
    assert timing.tpot_s == 1.0
    assert timing.end_to_end_s == 5.0 == timing.ttft_s + 3 * timing.tpot_s
    single = Timing(1.0, [3.0])
    assert (single.itl_s, single.tpot_s, single.end_to_end_s) == ([], None, 2.0)


def test_a_percentile_is_one_of_the_values():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, p) for p in (0, 20, 21, 50, 99, 100)] == [1, 1, 2, 3, 5, 5]
    assert [percentile(range(1, 101), p) for p in range(1, 101)] == [*range(1, 101)]


def test_throughput_counts_tokens_and_goodput_requests_that_met_both_targets():
    timings = [Timing(1.0, [2.0, 3.0]), Timing(2.0, [2.5]), Timing(2.0, [6.0, 7.0])]
    assert throughput(timings) == 5 / 6
    assert goodput(timings, ttft_s=1.0, tpot_s=1.0) == 2 / 6
    assert goodput(timings, ttft_s=1.0, tpot_s=0.9) == 1 / 6
    assert goodput(timings, ttft_s=0.9, tpot_s=1.0) == 1 / 6


class Clock:
    """A pass takes a second per token: what `replay` sees of time."""

    def __init__(self, config):
        self.now_s, self.decoder = 100.0, Decoder(GPT(config))
        self.model = self.decoder.model

    def now(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds

    def __call__(self, batch, cache):
        self.now_s += sum(len(entry.tokens) for entry in batch)
        return self.decoder(batch, cache)


def timings(scheduler):
    """Time a short prompt, and a long one that arrives while the first answer is computed."""
    config = GPTConfig(vocab=19, num_layers=1, hidden=4, num_heads=1)
    clock = Clock(config)
    engine = Engine(clock, PagedCache(config, 20, 4), scheduler)
    trace = [Arrival(2.0, Request([1], 5)), Arrival(3.5, Request([2] * 12, 1))]
    return replay(engine, trace, now=clock.now, sleep=clock.sleep)


def test_chunks_bound_the_gap_between_tokens_and_a_long_prompt_takes_longer():
    assert timings(preempting) == [Timing(2.0, [3.0, 4.0, 17.0, 18.0, 19.0]), Timing(3.5, [17.0])]
    short, long = timings(partial(chunked_prefill, token_budget=5))
    assert max(short.itl_s) == 5
    assert long.ttft_s > 17.0 - 3.5


def test_a_request_arrives_at_the_traces_time_also_during_a_pass():
    assert timings(preempting)[1].ttft_s == 13.5


def test_a_request_that_ends_with_an_error_is_no_measurement():
    model = GPT(GPTConfig(vocab=19, num_layers=1, hidden=4, num_heads=1))
    torch.nn.init.constant_(model.embedding.token.weight, math.nan)
    engine = Engine(Decoder(model), PagedCache(model.config, 20, 4), preempting)
    with pytest.raises(RuntimeError, match="request 0 .* nan"):
        replay(engine, [Arrival(0.0, Request([1], 5))])


PROBABILITIES = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)


def frequencies(**settings):
    generator, num_draws = torch.Generator().manual_seed(0), 4000
    sampling, logits_V = Sampling(**settings), PROBABILITIES.log()
    draws = Counter(sample(logits_V, sampling, generator) for _ in range(num_draws))
    return [draws[token] / num_draws for token in range(4)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.71}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        # The first has 4/7 of the two best, and reaches 0.5 alone; it has 0.4 of all four.
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0]),
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.3]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_should_be(settings, expected):
    """Within four standard deviations; a token that may not be drawn never is."""
    for seen, probability in zip(frequencies(**settings), expected, strict=True):
        assert abs(seen - probability) <= 4 * math.sqrt(probability * (1 - probability) / 4000)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_k": 0},
        {"seed": 2**64},
    ],
)
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Sampling(**settings)

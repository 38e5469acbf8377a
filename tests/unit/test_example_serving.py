"""examples/serving.py: facts that are so, and what makes its exit code 1."""

import pytest

from labkit.model import GPT
from labkit.serving import continuous, poisson_trace
from tests.an_example import load_example

example = load_example("serving")
TRACE = poisson_trace(12, 1.0, mean_answer=8)


@pytest.fixture(scope="module")
def answers():
    requests = [request for _, request in TRACE]
    return example.recorded(continuous, requests, GPT(example.MODEL))[1]


def test_facts_of_slots_and_passes_are_so(answers):
    assert example.waste(TRACE, answers)
    assert example.batching(TRACE, rounds=1)


def test_slots_that_calc_does_not_predict_are_found(answers, monkeypatch):
    as_if = example.calc.paged_cache_use([9], [9], 16)
    monkeypatch.setattr(example.calc, "paged_cache_use", lambda *_: as_if)
    assert not example.waste(TRACE, answers)


def test_passes_that_the_lengths_do_not_predict_are_found(monkeypatch):
    monkeypatch.setattr(example, "static_batches", continuous)
    monkeypatch.setattr(example, "MAX_RUNNING", 2)
    assert not example.batching(TRACE, rounds=1)


def test_an_answer_that_is_not_the_naive_one_is_found(monkeypatch):
    monkeypatch.setattr(example, "naive", lambda model, request: [0])
    monkeypatch.setattr(example.labkit, "run", lambda *_, **__: type("Run", (), {"values": [{}]}))
    assert not example.exact_answers(2)

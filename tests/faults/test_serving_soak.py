"""examples/serving_traffic.py, for some seconds, with a failure in each."""

import pytest

from tests.an_example import load_example

pytestmark = pytest.mark.clock
serving_traffic = load_example("serving_traffic")


def test_every_request_ends_and_nothing_leaks(monkeypatch, capsys):
    monkeypatch.setattr(serving_traffic, "SECONDS_PER_FAILURE", 1.0)
    monkeypatch.setattr(serving_traffic, "PATIENCE_S", 2.0)
    is_good = serving_traffic.report(5)
    printed = capsys.readouterr().out
    assert is_good, printed
    assert " 0 answers went on" not in printed

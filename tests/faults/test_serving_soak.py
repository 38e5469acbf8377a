"""examples/serving_traffic.py, for some hundred requests, with a failure after forty or so."""

import time
from types import SimpleNamespace

from tests.an_example import load_example

serving_traffic = load_example("serving_traffic")


def counts_looks():
    """A clock that goes on by 10 ms whenever somebody looks at it.

    So a second is a hundred passes of the router, however long they take.
    """
    now_s = 0.0

    def monotonic():
        nonlocal now_s
        now_s += 0.01
        return now_s

    return SimpleNamespace(monotonic=monotonic, sleep=time.sleep)


def test_every_request_ends_and_nothing_leaks(monkeypatch, capsys):
    monkeypatch.setattr(serving_traffic, "time", counts_looks())
    monkeypatch.setattr(serving_traffic, "LONGEST_END_S", 600.0)
    monkeypatch.setattr(serving_traffic, "REQUESTS_PER_SECOND", 40.0)
    monkeypatch.setattr(serving_traffic, "SECONDS_PER_FAILURE", 1.0)
    # A replica that is frozen is missed after this long, and so is one that is slow.
    monkeypatch.setattr(serving_traffic, "PATIENCE_S", 10.0)
    is_good = serving_traffic.report(5)
    printed = capsys.readouterr().out
    assert is_good, printed
    assert " 0 answers went on" not in printed

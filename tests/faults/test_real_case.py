"""A case whose two runs were recorded: its trace shows the fault, and the run without is shorter.

`python -m tests.recorded case_slow case_without` records them again. That real runs leave files
which can be read again: test_inject.py.
"""

from labkit import profile
from labkit.interview import slow_case
from tests import recorded


def test_a_case_is_solved_by_its_trace(tmp_path, monkeypatch):
    traces = {name: recorded.read(f"case_{name}") for name in ("slow", "without")}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(slow_case, "_recorded", lambda folder, *_: traces[folder.name])
    case = slow_case.open_case(2, seed=4)
    (fault,) = slow_case.draw(2, 4).faults
    (folder,) = tmp_path.glob("labkit-case-*")
    first = profile.diagnose(traces["slow"])[0]
    assert (first.cause, first.rank) == (fault.cause, fault.rank)
    assert case.is_clear
    assert case.judge(f"{first.cause}, rank {first.rank}, {100 * first.share:.0f}%")
    assert case.answer.value > 0.05
    assert (folder / "page.html").exists()

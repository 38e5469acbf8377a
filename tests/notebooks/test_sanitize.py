"""Outputs that nbval and `make notebooks` count as equal, and outputs that they must not."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_output
from nbval.plugin import IPyNbCell, get_sanitize_patterns, nocolors

PATTERNS = get_sanitize_patterns(Path(__file__).with_name("sanitize.cfg").read_text())


STILL_WAITING = (
    "[labkit] rank 0 waits in all_to_all #2 (cell 9, line 22) for ranks 1, 2 and 3, which compute\n"
    "after barrier #1 (cell 9, line 22). The timeout is 540 s.\n"
)
MAY_STILL_COME = (
    "[labkit] ranks 0 and 1 wait for each other: rank 0 in send #1 to rank 1 (cell 9, line 4) and\n"
    "rank 1 in send #1 to rank 0 (cell 9, line 4),\n"
    "unless another thread of rank 1 still brings it.\n"
    "The timeout is 300 s.\n"
)


def sanitized(text):
    for regex, replace in PATTERNS:
        text = re.sub(regex, replace, text)
    return text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ready in 0.06 s", "ready in 12 ms"),
        ("ready in 35 µs,", "ready in 1.2e-05 s,"),
        ("| rank 0 |   0.12 s |", "| rank 0 | 1,012.5 ms |"),
        ("0.12 seconds", "3 seconds"),
        ("all_reduce #3 (cell 11, line 7)", "all_reduce #3 (cell 1, line 7)"),
        ("Cell In[12], line 4", "Cell In[1], line 4"),
        ("pid 4711 died", "pid 12 died"),
        ("http://127.0.0.1:8888/lab", "http://127.0.0.1:43211/lab"),
        ("wrote /tmp/tmpab12/trace.json (8 events)", "wrote /var/folders/x/y/t.json (8 events)"),
        ("<object at 0x7f00dead>", "<object at 0x1000beefcafe>"),
        (f"{STILL_WAITING}all equal\n", "all equal\n"),
        (f"first\n{STILL_WAITING}all equal\n", "first\nall equal\n"),
        (f"{MAY_STILL_COME}Deadlock\n", "Deadlock\n"),
    ],
)
def test_what_differs_from_run_to_run_is_equal(one, other):
    assert sanitized(one) == sanitized(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 0 sent 56 bytes", "rank 0 sent 64 bytes"),
        ("4 ranks", "3 ranks"),
        ("2 sends", "3 sends"),
        ("12 samples", "13 samples"),
        ("50 GB/s", "60 GB/s"),
        ("loss 2.3456", "loss 2.3457"),
        ("(cell 1, line 7)", "(cell 1, line 8)"),
        ("0x1f flags", "0x2f flags"),
        ("[labkit] 3 of 24 messages came late\nall equal", "all equal"),
        (f"[labkit] rank 0 waits in a\nlost\n{STILL_WAITING}", ""),
        (f"{STILL_WAITING}lost\n{STILL_WAITING}", ""),
        (STILL_WAITING.replace("compute", "sleep or block"), ""),  # a notebook makes it do so
        (MAY_STILL_COME.replace(",\nunless another thread of rank 1 still brings it", ""), ""),
    ],
)
def test_what_a_notebook_teaches_is_compared(one, other):
    assert sanitized(one) != sanitized(other)


def test_a_cell_that_prints_only_of_delays_equals_one_that_prints_nothing():
    cell = IPyNbCell.__new__(IPyNbCell)
    cell.parent = SimpleNamespace(sanitize_patterns=dict(PATTERNS), skip_compare=())
    cell.colors = nocolors
    picture = new_output("display_data", {"text/plain": "a picture"})
    waiting, other = (
        new_output("stream", name="stdout", text=text) for text in (STILL_WAITING, "lost\n")
    )
    assert cell.compare_outputs([waiting, picture], [picture])
    assert not cell.compare_outputs([other, picture], [picture])
    assert not cell.compare_outputs([picture], [other, picture])

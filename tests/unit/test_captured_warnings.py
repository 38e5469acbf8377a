"""The store's own notes appear beside an answer, and other warnings go where they always go."""

import warnings

import pytest

from labkit.notebook.controls import capture_warnings
from labkit.progress import ProgressWarning


def warn(*said, error=None):
    for category, text in said:
        warnings.warn(text, category, stacklevel=2)
    if error:
        raise error
    return "the answer"


SAID = (
    (ProgressWarning, "not written"),
    (UserWarning, "another"),
    (ProgressWarning, "not written"),
)


def test_the_stores_words_are_kept_once_and_others_go_their_way():
    with pytest.warns(UserWarning) as passed_on:
        result, captured = capture_warnings(lambda: warn(*SAID))
    assert result == "the answer" and captured.messages == ("not written",)
    assert [str(each.message) for each in passed_on] == ["another"]


def test_no_warning_is_lost_where_the_call_raises():
    with pytest.warns() as passed_on, pytest.raises(OSError, match="full"):
        capture_warnings(lambda: warn(*SAID, error=OSError("full")))
    assert [str(each.message) for each in passed_on] == ["not written", "another", "not written"]

"""Characters that a verdict draws with stay aligned in a page that sets no font."""

import re

import pytest

from labkit.grade.catalog import get_exercise
from labkit.grade.verdict import Finding, Outcome, Verdict


@pytest.mark.parametrize("where", ["picture", "details", "printed"])
def test_rows_of_characters_are_monospaced(where):
    rows = "rank 0  F0\nrank 1   . F0"
    finding = Finding(Outcome.WRONG, "a deadlock", "it is blocked", **{where: rows})
    call = 'check("gpipe_schedule", seed=1)'
    verdict = Verdict(get_exercise("gpipe_schedule"), finding, "", 1, call)
    tags = re.findall("<pre[^>]*>", verdict._repr_html_())
    assert len(tags) == 1 and "font-family:monospace" in tags[0]


@pytest.mark.parametrize("where", ["details", "printed"])
def test_what_opens_a_long_text_is_on_one_line_with_its_label(where):
    finding = Finding(Outcome.WRONG, "a deadlock", "it is blocked", **{where: "rank 0  F0"})
    exercise = get_exercise("gpipe_schedule")
    page = Verdict(exercise, finding, "", 1, "check()")._repr_html_()
    (summary,) = re.findall("<summary>(.*?)</summary>", page)
    assert summary == f"<b>{where.title()}.</b> show" and page.count(f"{where.title()}.") == 1

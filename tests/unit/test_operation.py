"""Properties of a journal's operation."""

import pytest

from tests.an_operation import an_operation


@pytest.mark.parametrize(
    ("waited_s", "done_s", "is_waited_for"),
    [(None, None, False), (None, 2.0, False), (1.0, None, True), (1.0, 2.0, False)],
)
def test_a_rank_waits_for_what_it_began_to_wait_for_and_does_not_have(
    waited_s, done_s, is_waited_for
):
    assert an_operation(waited_s=waited_s, done_s=done_s).is_waited_for is is_waited_for

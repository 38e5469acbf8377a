"""Properties of a journal's operation."""

import pytest

from labkit.comm.operation import Region, Timeline
from tests.an_operation import an_operation


@pytest.mark.parametrize(
    ("waited_s", "done_s", "is_waited_for"),
    [(None, None, False), (None, 2.0, False), (1.0, None, True), (1.0, 2.0, False)],
)
def test_a_rank_waits_for_what_it_began_to_wait_for_and_does_not_have(
    waited_s, done_s, is_waited_for
):
    assert an_operation(waited_s=waited_s, done_s=done_s).is_waited_for is is_waited_for


def test_operations_within_a_region_are_those_that_began_in_it():
    before, first, last, after = (an_operation(posted_s=at_s) for at_s in (0.9, 1.0, 2.0, 2.1))
    regions = [Region("open", 0.0, None), Region("step", 1.0, 2.0), Region("step", 2.05, 3.0)]
    timeline = Timeline([before, first, last, after], regions)
    assert timeline.within("step") == [first, last]
    for name in ("open", "other"):
        with pytest.raises(ValueError, match=f"no region '{name}' that has ended"):
            timeline.within(name)

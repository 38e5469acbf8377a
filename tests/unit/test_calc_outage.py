"""The cost of an outage."""

import pytest

from labkit import calc


def test_every_gpu_is_paid_for_while_all_wait():
    assert calc.lost_gpu_hours(64, until_noticed_s=1800) == 32


def test_the_restart_and_the_work_since_the_checkpoint_are_lost_too():
    hours = calc.lost_gpu_hours(8, until_noticed_s=600, restart_s=300, since_checkpoint_s=900)
    assert hours == 8 * 0.5


@pytest.mark.parametrize(
    ("num_gpus", "seconds", "said"),
    [
        (0, 1, "num_gpus=0"),
        (2.5, 1, "num_gpus=2.5"),
        (8, -1, "until_noticed_s=-1"),
        (8, float("inf"), "until_noticed_s=inf"),
        (8, float("nan"), "until_noticed_s=nan"),
    ],
)
def test_numbers_that_no_job_has_are_refused(num_gpus, seconds, said):
    with pytest.raises(ValueError, match=said):
        calc.lost_gpu_hours(num_gpus, until_noticed_s=seconds)

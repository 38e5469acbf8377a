"""What an outage costs: every GPU is paid for, whether it computes or is idle.

    lost time = until somebody notices + until it runs again + all since the last checkpoint

Units: seconds, GPU-hours.
"""

from labkit.calc.checked_numbers import check_not_negative, check_number, is_whole
from labkit.calc.result import Result, total
from labkit.calc.units import seconds_text

_SECONDS_PER_HOUR = 3600


def lost_gpu_hours(
    num_gpus: int,
    *,
    until_noticed_s: float,
    restart_s: float = 0.0,
    since_checkpoint_s: float = 0.0,
) -> Result:
    """GPU-hours that a job loses by one outage.

    until_noticed_s: from the fault to the end of the job, such as torch's timeout. restart_s: from
    there to the first step. since_checkpoint_s: work that must be done again; half of the interval
    between checkpoints, on average.

    ValueError for a number that no job has: negative, not finite, no GPU.
    """
    check_number(num_gpus, "num_gpus")
    if not is_whole(num_gpus) or num_gpus < 1:
        raise ValueError(f"num_gpus={num_gpus!r}: give the number of GPUs, 1 or more")
    spans = {
        "until_noticed_s": until_noticed_s,
        "restart_s": restart_s,
        "since_checkpoint_s": since_checkpoint_s,
    }
    parts = {}
    for name, seconds in spans.items():
        check_not_negative(seconds, name)
        how = f"{num_gpus:,} GPUs * {seconds_text(seconds)}"
        hours = num_gpus * seconds / _SECONDS_PER_HOUR
        parts[name] = Result(hours, "", name, substitution=how)
    return total("GPU-hours lost", parts)

"""What `labkit.profile` reads from recorded traces of GPUs: one H200, and a rank of 128 GPUs.

The H200's come with the package: labkit/profile/h200_traces.py. The other one is in the repository,
in tests/data/traces, so its numbers are not proved beside an installed package.
"""

from statistics import mean

from labkit import profile
from labkit.grade.workspace import find_workspace
from labkit.profile import Terms, Trace


def step_seconds(name: str, term: str = "") -> float:
    """Seconds of a step of one H200, on average: all of it, or of one term of its breakdown.

    name: "large_model", "small_model", "item_per_layer" or "slow_loader".
    """
    return mean(each.seconds[term] if term else each.total for each in _steps(profile.h200(name)))


def share(name: str, term: str) -> float:
    """The term's share of all steps of one H200, 0 to 1."""
    return step_seconds(name, term) / step_seconds(name)


def cause(name: str) -> str:
    """What the diagnosis of the same trace names first: "compute", "launch", "input"."""
    return profile.diagnose(profile.h200(name))[0].cause


def of_128_gpus(what: str) -> float:
    """Of the first step of rank 0 of 128.

    what: "step" and "communication", in seconds; "exposed": communication while nothing is
    computed, in seconds; "overlap": the share of the communication that is hidden, 0 to 1.
    """
    file = find_workspace().root / "tests" / "data" / "traces" / "sampled_rank-0.json.gz"
    step = _steps(profile.read([file]))[0]
    exposed = step.in_flight - step.hidden
    numbers = {"step": step.total, "communication": step.in_flight, "exposed": exposed}
    return {**numbers, "overlap": step.overlap}[what]


def _steps(trace: Trace) -> list[Terms]:
    (steps,) = profile.breakdown(trace).values()  # of the one rank
    return steps

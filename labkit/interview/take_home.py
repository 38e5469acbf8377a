"""The take-home: one job on one simulated cluster, and its step time as the score.

    Llama 3 70B, 64 sequences of 8,192 tokens a step, 8 hosts of 8 H100. Host 5 computes 1.2 times
    as slowly as the others; host 2's network has half the bandwidth.

An answer is a TOML file:

    layout = "dp=2 pp=4 tp=8 zero=1 recompute=selective stages=20+20+20+20"
    schedule = "1f1b"                       or gpipe, interleaved, zb-h1, zb-h2, or rows of your own
    hosts = [0, 1, 2, 3, 4, 5, 6, 7]        the real host of each node of the layout, in order

    step = max over replicas(pipeline in time) + gradients over dp + optimizer

An operation takes the planner's seconds (labkit.calc.plan.pieces) times the factor of the slowest
host that its stage is on; half of a backward is the gradient of the inputs. A message between hosts
and an exchange over dp take twice as long where host 2 takes part. The schedule is any that
labkit.pipeline accepts, in its simulation. Memory is the planner's, activations in proportion to
what the schedule keeps in flight.

Lower bound: no product is faster than the share of a GPU's peak that the planner's largest products
reach. So the step takes at least the job's products divided by that speed of all 64 GPUs, each
divided by its host's factor. It has no bubble, no message, no attention and no recomputing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from labkit import calc, pipeline, progress
from labkit.arguments import UserError
from labkit.calc.layout import Layout
from labkit.calc.pieces import Pieces
from labkit.calc.plan import gpu_memory
from labkit.pipeline import Costs, Schedule, ScheduleError, Timing

NUM_HOSTS, PER_HOST = 8, 8
SLOW_HOST, SLOW_FACTOR = 5, 1.2
"""A host that computes more slowly."""
FAR_HOST, FAR_FACTOR = 2, 2.0
"""A host whose network is slower."""
_NAME = "llama3-70b"
JOB = calc.plan.Job(_NAME, "megatron_bf16", calc.cluster("h100", 64), 64, 8192)
SCHEDULES = {
    "gpipe": pipeline.gpipe,
    "1f1b": pipeline.one_f_one_b,
    "interleaved": pipeline.interleaved,
    "zb-h1": pipeline.zero_bubble_h1,
    "zb-h2": pipeline.zero_bubble_h2,
}
"""Schedules that an answer may name."""
_KEYS = ("layout", "schedule", "hosts")


class UnusableAnswer(UserError, ValueError):
    """An answer that cannot be scored, and why."""


@dataclass(frozen=True)
class Score:
    """A scored answer."""

    seconds: float
    """Seconds of a step."""
    bubble: float
    """Idle share of the slowest replica's pipeline, 0 to 1."""
    exchange_s: float
    """Seconds of exchanges over dp that nothing hides."""
    memory_bytes: float
    """Bytes of the fullest GPU."""
    timing: Timing = field(repr=False, compare=False)
    """The slowest replica's pipeline, in seconds."""

    def __str__(self) -> str:
        over = self.seconds / bound_s()
        return (
            f"{self.seconds:.3f} s a step, {over:.2f} times the bound; pipeline idle "
            f"{self.bubble:.0%}, {self.exchange_s:.3f} s of exchanges over dp, "
            f"{self.memory_bytes / 1e9:.1f} GB on the fullest GPU"
        )


BASELINES: dict[str, dict[str, Any]] = {
    "FSDP on all GPUs": {"layout": "dp=64 zero=3 recompute=full"},
    "tensor parallel hosts": {"layout": "dp=8 tp=8 zero=1 recompute=full"},
    "GPipe": {"layout": "dp=2 pp=4 tp=8 zero=1 recompute=full", "schedule": "gpipe"},
    "1F1B": {"layout": "dp=2 pp=4 tp=8 zero=1 recompute=selective", "schedule": "1f1b"},
    "interleaved": {
        "layout": "dp=2 pp=4 tp=8 virtual=2 zero=1 recompute=selective",
        "schedule": "interleaved",
    },
}
"""Answers to beat, by name."""


def task() -> str:
    """Return the job and its cluster in words."""
    return " ".join((__doc__ or "").split("\n\n")[1].split())


@cache
def bound_s() -> float:
    """Return seconds that no step can go below."""
    tokens = JOB.global_batch * JOB.length
    looked_up = JOB.config.vocab * JOB.config.hidden  # the embedding multiplies nothing
    flops = calc.training_flops(float(calc.num_parameters(JOB.model)) - looked_up, tokens)
    gpu = calc.GPUS["h100"]
    speeds = PER_HOST * sum(1 / _factor(host) for host in range(NUM_HOSTS))
    return float(flops) / (gpu.flops_per_s * gpu.matmul_share * speeds)


def read_answer(file: Path) -> dict[str, Any]:
    """Read an answer. UnusableAnswer for a file that is no TOML; OSError."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnusableAnswer(f"{file} cannot be read as TOML: {error}") from None


def score(answer: dict[str, Any], *, keep: bool = True) -> Score:
    """Return the score of an answer; it is stored unless keep is False.

    Raises UnusableAnswer for one that does not run or does not fit.
    """
    if unknown := sorted(set(answer) - set(_KEYS)):
        raise UnusableAnswer(f"unknown {', '.join(unknown)}: an answer has {', '.join(_KEYS)}")
    layout, hosts = _layout(answer.get("layout")), _hosts(answer.get("hosts"))
    try:
        parts = calc.plan.pieces(JOB, layout)
        schedule = _schedule(answer.get("schedule", "1f1b"), layout, parts)
    except (ScheduleError, ValueError) as error:
        raise UnusableAnswer(str(error)) from None
    nbytes = _memory_bytes(layout, schedule)
    if nbytes > JOB.room_bytes:
        raise UnusableAnswer(
            f"the fullest GPU needs {nbytes / 1e9:.1f} GB and has {JOB.room_bytes / 1e9:.1f} GB: "
            "cut the model further, recompute more, or keep fewer microbatches in flight"
        )
    timings = [
        pipeline.simulate(schedule, _costs(parts, layout, replica, hosts))
        for replica in range(layout.dp)
    ]
    slowest = max(timings, key=lambda timing: timing.makespan)
    exchange_s = max(
        _exchange_s(parts, layout, stage, hosts) for stage in range(layout.pp * layout.virtual)
    )
    seconds = slowest.makespan + exchange_s + parts.optimizer_s
    if keep:
        progress.record("take-home", _NAME, seconds=seconds)
    return Score(seconds, slowest.bubble(), exchange_s, nbytes, slowest)


@cache
def scored_baselines() -> dict[str, Score]:
    """Return the scores of the answers to beat, by name."""
    return {name: score(answer, keep=False) for name, answer in BASELINES.items()}


def beaten(found: Score) -> list[str]:
    """Return the names of the answers that are slower."""
    return [name for name, each in scored_baselines().items() if found.seconds < each.seconds]


def best_s() -> float | None:
    """Return the learner's best step so far, in seconds; None before the first one."""
    scored = progress.events(_NAME, "take-home")
    return min((event.detail["seconds"] for event in scored), default=None)


def _layout(text: Any) -> Layout:
    if not isinstance(text, str):
        raise UnusableAnswer('there is no layout: write layout = "dp=2 pp=4 tp=8 zero=1"')
    try:
        layout = Layout.parse(text)
    except ValueError as error:
        raise UnusableAnswer(f"layout: {error}") from None
    if layout.world_size != NUM_HOSTS * PER_HOST:
        raise UnusableAnswer(f"the layout has {layout.world_size} GPUs, and the cluster 64")
    if layout.tp * layout.cp > PER_HOST:
        raise UnusableAnswer(
            f"tp * cp = {layout.tp * layout.cp}: tensor and context parallelism stay within a "
            f"host of {PER_HOST} here"
        )
    return layout


def _hosts(given: Any) -> list[int]:
    hosts = list(range(NUM_HOSTS)) if given is None else given
    if not isinstance(hosts, list) or sorted(map(str, hosts)) != [*map(str, range(NUM_HOSTS))]:
        raise UnusableAnswer(f"hosts = {given!r:.80}: write each of 0 to 7 once, in any order")
    return [int(host) for host in hosts]


def _schedule(given: Any, layout: Layout, parts: Pieces) -> Schedule:
    """Return the schedule of a name or of rows. ValueError, ScheduleError."""
    if isinstance(given, str) and given in SCHEDULES:
        choices = {"virtual": layout.virtual} if given == "interleaved" else {}
        made = pipeline.plan(SCHEDULES[given], layout.pp, parts.num_microbatches, **choices)
    elif isinstance(given, str) and "F0" in given:
        made = pipeline.parse(given)
    else:
        raise ValueError(
            f"schedule = {given!r:.60}: give one of {', '.join(SCHEDULES)}, or rows as "
            "labkit puzzle takes them, a line per rank"
        )
    pipeline.validate(made)
    shape = (made.num_stages, made.num_microbatches)
    if shape != (layout.pp * layout.virtual, parts.num_microbatches):
        raise ValueError(
            f"the schedule has {shape[0]} stages and {shape[1]} microbatches, and the layout "
            f"{layout.pp * layout.virtual} and {parts.num_microbatches}"
        )
    return made


def _factor(host: int) -> float:
    return SLOW_FACTOR if host == SLOW_HOST else 1.0


def _hosts_of(layout: Layout, pp: int, replica: int, hosts: Sequence[int]) -> set[int]:
    """Return the hosts of the GPUs of a stage of a replica."""
    at = {"pp": pp, "dp": replica}
    return {
        hosts[rank // PER_HOST]
        for rank in range(layout.world_size)
        if at.items() <= layout.coordinates(rank).items()
    }


def _costs(parts: Pieces, layout: Layout, replica: int, hosts: Sequence[int]) -> Costs:
    """Return the seconds of each operation of a replica, by stage."""
    num = layout.pp * layout.virtual
    on = [_hosts_of(layout, stage % layout.pp, replica, hosts) for stage in range(num)]
    slow = [max(map(_factor, each)) for each in on]
    exchanged = parts.exchanged_s or ((0.0, 0.0),) * num
    far = [_far_dp(layout, stage % layout.pp, hosts) - 1 for stage in range(num)]
    forward = [slow[s] * parts.forward_s[s] + far[s] * exchanged[s][0] for s in range(num)]
    backward = [slow[s] * parts.backward_s[s] + far[s] * exchanged[s][1] for s in range(num)]
    halves = [each / 2 for each in backward]
    sends = [
        parts.send_s * (FAR_FACTOR if here != there and FAR_HOST in here | there else 1.0)
        for here, there in zip(on, on[1:], strict=False)
    ]
    return Costs(forward=forward, input_gradient=halves, weight_gradient=halves, send=sends or 0.0)


def _far_dp(layout: Layout, pp: int, hosts: Sequence[int]) -> float:
    """Return the factor of a stage's exchanges over dp."""
    on = set().union(*(_hosts_of(layout, pp, replica, hosts) for replica in range(layout.dp)))
    return FAR_FACTOR if FAR_HOST in on and len(on) > 1 and layout.dp > 1 else 1.0


def _exchange_s(parts: Pieces, layout: Layout, stage: int, hosts: Sequence[int]) -> float:
    """Return seconds over dp at the end of a step that run beside nothing."""
    both = parts.reduce_s[stage] + parts.gather_s[stage]
    return both * _far_dp(layout, stage % layout.pp, hosts) * (1 - parts.overlap)


def _memory_bytes(layout: Layout, schedule: Schedule) -> float:
    """Return the bytes of the fullest GPU, with what this schedule keeps in flight."""
    usual = gpu_memory.in_flight(JOB, layout)
    flying = pipeline.in_flight(schedule)
    found = []
    for rank in range(layout.pp):
        held = calc.plan.memory(JOB, layout, rank)
        activations = float(held.parts["activations"])
        share = flying[rank] / layout.virtual / usual[rank]
        found.append(float(held) + activations * (share - 1))
    return max(found)

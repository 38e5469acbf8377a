"""A briefing of a design round: a job, what limits it, what may be asked, and a model answer.

    briefing = briefings()["llama-70b-15t"]        one of the book
    briefing = draw_briefing(seed=3)               another one, of the same parts
    briefing = draw_briefing(seed=3, model="path/of/config.json")

    briefing.job            what the planner gets
    briefing.questions      to clarify; each costs minutes, and some tell nothing
    briefing.parts          what the plan must say, with a checklist and a model answer
    briefing.changes        facts that change afterwards
    briefing.model_layout   the planner's best layout

The texts are in labkit/course/telling/design.toml: parts that every plan has, and what a
constraint, such as spot machines, adds to them.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from labkit import arguments, calc
from labkit.arguments import UserError
from labkit.calc.hardware import Cluster, Tier
from labkit.calc.plan import Estimate, Job
from labkit.calc.result import Result
from labkit.calc.units import bytes_text, count_text
from labkit.grade.catalog import COURSE

_FILE = COURSE / "telling" / "design.toml"
_DAY_S, _TOKEN_BYTES = 86_400, 4
_DRAWN = "drawn"
_ROOM = (1.15, 1.6)
"""Deadlines are the fastest plan's days times a number between these."""


class UnknownBriefing(UserError, LookupError):
    """There is no such briefing. The message lists those there are."""


@dataclass(frozen=True, slots=True)
class Clarification:
    """A question that the candidate may ask back."""

    question: str
    answer: str
    minutes: float = 1.0
    matters: bool = True
    """False: its answer changes nothing in the plan."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the plan, in words."""

    name: str
    asks: str
    points: tuple[str, ...]
    """Points that an interviewer listens for; ticked as on a card."""
    answer: str
    """A model answer."""


@dataclass(frozen=True, slots=True)
class Change:
    """A fact that changes when the plan is made."""

    says: str
    why: str
    """Its effect on the plan."""
    of_job: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the Job that change, and links=0.5, the share of the bandwidth between nodes."""
    slow_node: float = 0.0
    """The factor by which one node computes more slowly; 0: none does."""


@dataclass(frozen=True)
class Briefing:
    """A briefing."""

    name: str
    story: str
    """The interviewer's words."""
    job: Job
    days: float
    """The deadline."""
    questions: tuple[Clarification, ...]
    parts: tuple[Part, ...]
    changes: tuple[Change, ...]
    command: str
    """It asks this briefing again, in a terminal."""

    @cached_property
    def model(self) -> Estimate:
        """The planner's best layout for the job, with its step, days and dollars."""
        return best(self.job)

    @property
    def interval_s(self) -> float:
        """Seconds between checkpoints, by Daly's formula."""
        return float(_interval(self.job))

    def changed(self, change: Change) -> Job:
        """Return the job after a change."""
        entries = dict(change.of_job)
        machines = self.job.machines
        if "links" in entries:
            machines = _with_links(machines, entries.pop("links"))
        if "num_gpus" in entries:
            machines = replace(machines, num_gpus=entries.pop("num_gpus"))
        return replace(self.job, cluster=machines, **entries)

    def slowed(self, change: Change, chosen: Estimate) -> float:
        """Return seconds of a step of a layout after a change. ValueError if it does not work."""
        found = calc.plan.estimate(self.changed(change), chosen.layout)
        if not change.slow_node:
            return float(found.step)
        parts = calc.plan.pieces(found.job, found.layout)
        slow = [
            calc.simulate.Straggler(rank, change.slow_node)
            for rank in range(self.job.machines.gpus_per_node)
        ]
        usual = calc.simulate.step(parts, found.layout).seconds
        return float(found.step) * calc.simulate.step(parts, found.layout, slow).seconds / usual


def _with_links(machines: Cluster, share: float) -> Cluster:
    """Return the cluster with this share of the bandwidth between nodes."""
    slow = machines.slow
    return replace(machines, slow=Tier(slow.bandwidth_bytes_per_s * share, slow.latency_s))


def best(job: Job) -> Estimate:
    """Return the planner's best layout. ValueError if none fits."""
    found = calc.plan.plan(job, 1)
    if not found.ranked:
        raise ValueError(f"no layout of {job.title} fits")
    return found.best


@cache
def _library() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def briefings() -> dict[str, Briefing]:
    """Return the briefings of the book, by name, easy ones first."""
    return {entry["name"]: _made(**entry) for entry in _library()["briefings"]}


def names() -> list[str]:
    """Return the names of the book."""
    return [entry["name"] for entry in _library()["briefings"]]


def get_briefing(name: str) -> Briefing:
    """Return a briefing of the book, or "drawn-3", of seed 3. Raises UnknownBriefing, TypeError."""
    arguments.instance("name", name, str, f"name a briefing, such as {names()[0]!r}")
    for entry in _library()["briefings"]:
        if entry["name"] == name:
            return _made(**entry)
    if match := re.fullmatch(rf"{_DRAWN}-(-?\d+)", name):
        return draw_briefing(int(match[1]))
    known = ", ".join(names())
    raise UnknownBriefing(f"there is no briefing {name[:60]!r}. There are: {known}")


def draw_briefing(seed: int | None = None, model: str | Path | None = None) -> Briefing:
    """Return a new briefing, in which some layout fits; the same for the same seed and model.

    It takes seconds: the planner looks for the fastest layout, which the deadline follows from.

    model: the name of one, or the path of its config.json; None: drawn. ValueError for an unknown
    one, and for one that no drawn cluster can train.
    """
    seed = random.randrange(10**6) if seed is None else seed
    if model is not None and not str(model).endswith(".json"):
        calc.models.model(str(model))  # an unknown name
    rng = random.Random(seed)
    drawn = _library()["draw"]
    for _ in range(50):
        size = rng.choice(drawn["models"])
        entry = {
            "name": f"{_DRAWN}-{seed}",
            "model": str(model) if model is not None else size["model"],
            "cluster": rng.choice(drawn["clusters"]),
            "gpus": rng.choice(size["gpus"]),
            "global_batch": rng.choice(size["global_batch"]),
            "sequence": size["sequence"],
            "tokens": rng.choice(size["tokens"]),
            "constraints": rng.sample(list(_library()["constraints"]), 1),
        }
        try:
            again = f"--seed {seed} --model {model}" if model is not None else entry["name"]
            return _made(**entry, room=rng.uniform(*_ROOM), again=again)
        except ValueError:
            continue
    raise ValueError(f"no cluster that was drawn can train {model}")


def _made(
    name: str,
    model: str,
    cluster: str,
    gpus: int,
    global_batch: int,
    sequence: int,
    tokens: float,
    constraints: Sequence[str],
    story: str = "",
    days: float = 0.0,
    room: float = 1.25,
    again: str = "",
) -> Briefing:
    """Return a briefing with the texts of its constraints. ValueError if no layout fits."""
    library = _library()
    limits = [library["constraints"][each] for each in constraints]
    machines = calc.cluster(cluster, gpus)
    for limit in limits:
        machines = _with_links(replace(machines, **limit.get("cluster", {})), limit.get("links", 1))
    is_file = model.endswith(".json")
    config = calc.model_from_config(model) if is_file else model
    length = next((limit["sequence"] for limit in limits if "sequence" in limit), sequence)
    # A longer sequence leaves the tokens of a step as they are.
    batch = max(1, global_batch * sequence // length)
    job = Job(config, "megatron_bf16", machines, batch, length, float(tokens))
    if not days:
        days = float(max(2, round(best(job).time.to("days") * room)))
    facts = {
        "model": Path(model).stem if is_file else model,
        "gpus": f"{gpus:,}",
        "cluster": cluster.upper(),
        "tokens": count_text(tokens),
        "days": f"{days:g}",
        "sequence": f"{length:,}",
        "batch": count_text(batch * length),
        **_computed(job, days),
    }
    said = [story or library["draw"]["story"], *(limit["says"] for limit in limits)]
    return Briefing(
        name,
        " ".join(text.format(**facts) for text in said),
        job,
        days,
        tuple(
            Clarification(**each)
            for each in (*library["questions"], *(q for li in limits for q in li["questions"]))
        ),
        tuple(_part(part, limits, facts) for part in library["parts"]),
        tuple(
            Change(**each)
            for each in (*library["changes"], *(c for li in limits for c in li.get("changes", ())))
        ),
        f"labkit design {again or name}",
    )


def _time(seconds: float) -> str:
    return str(Result(seconds, "seconds", ""))


def _interval(job: Job) -> Result:
    return calc.checkpoint_interval(job.assumptions.checkpoint_write_s, job.machines.mtbf_s, "daly")


def _computed(job: Job, days: float) -> dict[str, str]:
    """Return the numbers of the model answers, as text."""
    interval, mtbf_s = _interval(job), job.machines.mtbf_s
    states = calc.model_state_bytes(calc.num_parameters(job.model), job.recipe)
    return {
        "states": bytes_text(float(states)),
        "gpu_hours": f"{job.machines.gpu_hours_between_interruptions:,.0f}",
        "between": _time(mtbf_s),
        "rate": bytes_text(_TOKEN_BYTES * (job.tokens or 0.0) / (days * _DAY_S)),
        "interval": _time(float(interval)),
        "lost": _time(float(interval) / 2 + job.assumptions.restart_s),
    }


def _part(
    part: Mapping[str, Any], limits: Sequence[Mapping[str, Any]], facts: Mapping[str, str]
) -> Part:
    """Return a part with the points and sentences that the constraints add."""
    added = [limit["adds"][part["name"]] for limit in limits if part["name"] in limit["adds"]]
    return Part(
        part["name"],
        part["asks"],
        (*part["points"], *(point for each in added for point in each["points"])),
        " ".join([part["answer"], *(each["answer"] for each in added)]).format(**facts),
    )

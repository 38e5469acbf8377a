"""Layouts that fit_175b's why_not is asked about, and what their first rank holds, by part."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit import calc
from labkit.grade.graders.layout_answers import Given
from labkit.grade.graders.layout_memory import Rank
from labkit.grade.graders.layout_tasks import Task

PARTS = ("parameters", "gradients", "optimizer", "activations")
# Between the largest part and the next: nobody is wrong by rounding.
_CLEAR = 1.05
_NUM_TRIES = 1500


@dataclass(frozen=True)
class Asked:
    """A layout of a task, and what its first rank holds by the planner."""

    task: Task
    layout: calc.Layout

    @property
    def as_dict(self) -> dict[str, Any]:
        """The layout as the learner's function gets it."""
        names = ("tp", "pp", "virtual", "zero", "microbatch", "recompute")
        return {name: getattr(self.layout, name) for name in names}

    @cached_property
    def rank(self) -> Rank:
        """The first."""
        return Rank.of(Given(self.task, self.layout), 0)

    @cached_property
    def parts(self) -> dict[str, float]:
        """By PARTS."""
        held = self.rank
        return {
            "parameters": held.sum("parameters"),
            "gradients": held.sum("gradients"),
            "optimizer": held.sum("master", "moments"),
            "activations": held.sum("activations"),
        }

    @cached_property
    def whole(self) -> dict[str, float]:
        """The states without ZeRO."""
        kept, layout = self.task.job.kept, self.layout
        own = self.task.own_params(layout)
        sizes = (kept.parameter_bytes, kept.gradient_bytes, kept.optimizer_bytes)
        return {name: own * size for name, size in zip(PARTS[:3], sizes, strict=True)}

    def __str__(self) -> str:
        return f"{self.layout}, for {self.task}"


Answer = tuple[str, float]


def of_parts(parts: Mapping[str, float]) -> Answer:
    """What a count leads to."""
    return max(PARTS, key=parts.__getitem__), parts["parameters"] + parts["gradients"]


def right(asked: Asked) -> Answer:
    """By the planner."""
    return of_parts(asked.parts)


def some_layouts(rng: random.Random, tasks: Sequence[Task]) -> Iterator[Asked]:
    """Some that no rule refuses, whether they fit or not, with one part clearly the largest."""
    for _ in range(_NUM_TRIES):
        task = rng.choice(tasks)
        try:
            layout = calc.Layout(
                world_size=task.job.num_gpus,
                tp=rng.choice((1, 2, 4, 8)),
                pp=rng.choice((1, 2, 4, 8, 16)),
                virtual=rng.choice((1, 1, 2, 3, 4)),
                zero=rng.randrange(4),
                microbatch=rng.choice((1, 2, 4)),
                recompute=rng.choice(("none", "none", "full")),
            )
        except ValueError:  # virtual stages without a pipeline
            continue
        at_most = task.job.machines.gpus_per_node
        if layout.tp > at_most or calc.refusal(task.job, layout) is not None:
            continue
        if task.job.config.layers % (layout.pp * layout.virtual) or layout.dp == 1:
            continue
        asked = Asked(task, layout)
        largest, second = sorted(asked.parts.values())[:-3:-1]
        if largest > _CLEAR * second:
            yield asked

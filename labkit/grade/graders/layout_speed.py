"""Layouts that fit and are slow: by which habit, or which part of the step.

A habit is in all layouts of an answer, those too that are fast enough with it, or in most
slow ones.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from labkit import calc
from labkit.calc.planner.step import step_parts
from labkit.calc.units import seconds_text
from labkit.grade.graders.layout_answers import Given, Wrong

BUDGET = 1.2
"""Times the planner's fastest. Enumeration with the exercise's model stays below 1.1."""


def _are_most(is_so: Callable[[Given], bool], slow: Sequence[Given]) -> bool:
    return 2 * sum(map(is_so, slow)) > len(slow)


class Habit(NamedTuple):
    """What is done whatever the task."""

    name: str
    explanation: str
    is_so: Callable[[Sequence[Given], Sequence[Given]], bool]
    """Of all layouts, and of those that are slow."""


def is_slow(given: Given) -> bool:
    """Beyond the budget."""
    return given.task.seconds(given.layout) > BUDGET * given.task.best_seconds


def _most_tp(given: Given) -> int:
    """That a node, heads and features allow."""
    config, node = given.task.job.config, given.task.job.machines.gpus_per_node
    cut = (node, config.heads, config.num_kv_heads, config.mlp_features)
    return max(tp for tp in range(1, node + 1) if all(each % tp == 0 for each in cut))


def _largest_loss(given: Given) -> str:
    """The part of the step that is most above what it is in the fastest."""
    mine = step_parts(given.task.job, given.layout)
    best = step_parts(given.task.job, given.task.best)
    return max(mine, key=lambda name: mine[name] - best[name])


def _is_deep(given: Given) -> bool:
    """What it loses is then the bubble, sends, or a last rank that is slower by its head."""
    return given.layout.pp >= 2 * given.task.best.pp and not _is_recomputed(given)


def _is_flat(given: Given) -> bool:
    return given.layout.pp == 1 < given.task.best.pp


def _is_plain(given: Given) -> bool:
    return given.layout.virtual == 1 and _largest_loss(given) == "bubble"


def _is_recomputed(given: Given) -> bool:
    return given.layout.recompute == "full" and given.task.best.recompute != "full"


HABITS: tuple[Habit, ...] = (
    Habit(
        "always recomputes",
        "full recomputation is a second forward pass, a third more computing. It is the last "
        "resort: first tp, pp and ZeRO make room, and a smaller microbatch",
        lambda every, slow: all(given.layout.recompute == "full" for given in every),
    ),
    Habit(
        "zero 3 everywhere",
        "zero 3 gathers parameters for every microbatch, forward and backward, between nodes, and "
        "small shares of the batch do not hide it. It also leaves activations as they are. With "
        "tp and pp a share of the states is small enough for zero 1",
        lambda every, slow: all(given.layout.zero == 3 for given in every),
    ),
    Habit(
        "no tensor parallelism",
        "tp cuts activations as well as states, and inside a node its collectives are cheap. "
        "Without it large models recompute, or have pipelines with a large bubble",
        lambda every, slow: all(given.layout.tp == 1 for given in every),
    ),
    Habit(
        "always as much tensor parallelism as a node has",
        "tp's collectives are in every layer, and nothing hides them: 8 times 2 hidden bytes for "
        "each token of each layer. More of it than memory asks for is only slower",
        lambda every, slow: all(given.layout.tp == _most_tp(given) for given in every),
    ),
    Habit(
        "avoids the pipeline",
        "where tp fills a node and it does not fit, pp cuts states further, and what it sends is "
        "little. Without it ZeRO has to, or recomputation",
        lambda every, slow: _are_most(_is_flat, slow),
    ),
    Habit(
        "a deeper pipeline than it needs",
        "the bubble is (pp - 1) / (virtual m), and a deeper pipeline has a larger one, more sends, "
        "and a last rank that is slower than the others by the whole head. As many stages as "
        "memory asks for are enough",
        lambda every, slow: _are_most(_is_deep, slow),
    ),
    Habit(
        "recomputes where it need not",
        "there are layouts that keep all activations and fit. Activations are / tp with sequence "
        "parallelism, all of them, and a smaller microbatch has fewer",
        lambda every, slow: _are_most(_is_recomputed, slow),
    ),
    Habit(
        "never interleaves",
        "with virtual stages the bubble is (pp - 1) / (virtual m). They cost more sends, which are "
        "small, and some activations",
        lambda every, slow: _are_most(_is_plain, slow),
    ),
)


def why_slow(every: Sequence[Given], slow: Sequence[Given]) -> Wrong:
    """By habit; else by the part of the step that is largest beside the fastest's."""
    habit = next((each for each in HABITS if each.is_so(every, slow)), None)
    worst = max(slow, key=lambda given: given.task.seconds(given.layout) / given.task.best_seconds)
    seen = _seen(worst)
    if habit is not None:
        return Wrong(habit.name, f"{habit.explanation}. {seen}", 1)
    parts = {"compute": "computing", "dp": "exchanges over dp", "tp": "collectives of tp"}
    name = _largest_loss(slow[0])
    said = f"{len(slow)} of {len(every)} layouts are beyond {BUDGET} times the fastest. {seen}"
    return Wrong(f"slow: {parts.get(name, name)}", said, 2)


def _seen(given: Given) -> str:
    seconds, name = given.task.seconds(given.layout), _largest_loss(given)
    parts = [
        seconds_text(step_parts(given.task.job, each)[name])
        for each in (given.layout, given.task.best)
    ]
    memory = calc.layout_memory(given.task.job, given.layout)
    return (
        f"For {given.task}: {given.layout} takes {seconds_text(seconds)} a step "
        f"and {memory}; {seconds_text(given.task.best_seconds)} can be reached, and "
        f"{seconds_text(BUDGET * given.task.best_seconds)} would do. Most is lost by {name}: "
        f"{parts[0]} against {parts[1]}"
    )

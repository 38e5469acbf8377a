"""Layouts as fit_175b's learners give them: their form, and the rules that they keep to.

Rules are the planner's, with its words, and one more: no tensor parallelism across nodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from labkit import calc
from labkit.grade.graders.layout_tasks import Task

NUMBERS = ("tp", "pp", "virtual", "zero", "microbatch")
RECOMPUTE = ("none", "full")
_CONTRACT = (
    'the contract is a dict with whole numbers "tp", "pp", "virtual", "zero" (0 to 3) and '
    '"microbatch", and "recompute", "none" or "full"; dp follows'
)


class Wrong(NamedTuple):
    """What is wrong about an answer."""

    name: str
    explanation: str
    hint: int


class Given(NamedTuple):
    """A layout that can run, if it fits."""

    task: Task
    layout: calc.Layout


def wrong_form(answer: Any) -> Wrong | None:
    """Whether it is a layout at all."""
    if answer is None:
        return Wrong("returns something else", f"layout returns None; {_CONTRACT}", 3)
    if not isinstance(answer, Mapping) or set(answer) != {*NUMBERS, "recompute"}:
        return Wrong("returns something else", f"it returns {str(answer)[:120]}; {_CONTRACT}", 3)
    for name in NUMBERS:
        value = answer[name]
        if type(value) is not int or not (value in range(4) if name == "zero" else value >= 1):
            said = f"{name} is {value!r}; {_CONTRACT}"
            return Wrong("returns something else", said, 3)
    if answer["recompute"] not in RECOMPUTE:
        said = f"recompute is {answer['recompute']!r}; {_CONTRACT}"
        return Wrong("returns something else", said, 3)
    return None


def read(task: Task, answer: Mapping[str, Any]) -> Given | Wrong:
    """The layout, or the first rule that it breaks."""
    tp, pp, num = answer["tp"], answer["pp"], task.job.num_gpus
    if num % (tp * pp):
        return Wrong(
            "does not use all GPUs",
            f"tp {tp} * pp {pp} makes {tp * pp} ranks, which do not divide {num} GPUs: "
            f"{num - num // (tp * pp) * tp * pp} of them would stand by. dp is num_gpus / (tp pp), "
            "and has to come out whole",
            3,
        )
    if answer["virtual"] > 1 and pp == 1:
        return Wrong(
            "virtual stages without a pipeline",
            f"virtual is {answer['virtual']} where pp is 1: one rank has all layers, and no bubble "
            "to make smaller. Give virtual 1",
            3,
        )
    if task.job.machines.gpus_per_node % tp:
        return _across_nodes(task, tp)
    layout = calc.Layout(world_size=num, **answer)
    refused = calc.refusal(task.job, layout)
    if refused is not None:
        return Wrong(refused.title, f"the planner refuses {layout}: {refused.reason}", 3)
    return Given(task, layout)


def _across_nodes(task: Task, tp: int) -> Wrong:
    machines = task.job.machines
    ratio = machines.fast.bandwidth_bytes_per_s / machines.slow.bandwidth_bytes_per_s
    return Wrong(
        "tensor parallelism across nodes",
        f"tp {tp} in nodes of {machines.gpus_per_node} GPUs: some groups have ranks on two nodes. "
        "Tensor parallelism talks in every layer, forward and backward, and nothing hides it; "
        f"links between nodes are {ratio:.0f} times slower here. What does not fit with tp inside "
        "a node is cut by the pipeline, which sends little",
        1,
    )


def all_alike(answers: Sequence[Any]) -> bool:
    """Whether every task got the same one."""
    return len(answers) > 1 and all(answer == answers[0] for answer in answers)

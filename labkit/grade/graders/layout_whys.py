"""why_not of fit_175b: asked about layouts of which wrong counts name another part."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from labkit import calc
from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, is_number
from labkit.grade.graders.layout_counts import COUNTS, THEORIES
from labkit.grade.graders.layout_parts import PARTS, Asked, of_parts, right, some_layouts
from labkit.grade.graders.layout_tasks import Task


class WhyNot(ByTheory[Asked]):
    """Judges why_not; fit_175b's grader asks."""

    functions: Sequence[str] = ("why_not",)
    rights: Mapping[str, Any] = {"why_not": right}
    theories = {"why_not": THEORIES}
    rtol = 1e-4  # shards are rounded up to whole parameters

    def wrong_form(self, function: str, answer: Any) -> str:
        """A name and a number."""
        is_pair = isinstance(answer, list | tuple) and len(answer) == 2
        if is_pair and answer[0] in PARTS and is_number(answer[1]):
            return ""
        return f'a name and bytes, such as ("optimizer", 5.5e9); the names are {", ".join(PARTS)}'

    def unexplained(self, function: str, pairs: Sequence[tuple[Asked, Any]]) -> tuple[str, str]:
        """A name, or bytes."""
        names = sum(answer[0] != right(asked)[0] for asked, answer in pairs)
        sizes = sum(abs(answer[1] / right(asked)[1] - 1) > self.rtol for asked, answer in pairs)
        what = "another largest part" if names >= sizes else "other bytes of weights and gradients"
        return (
            what,
            f"{names} of {len(pairs)} names are wrong, and {sizes} of the bytes. Write down N / "
            "(tp pp), then what ZeRO shards, then a layer's activations, its layers, and how many "
            "microbatches are in flight",
        )


def draw(rng: random.Random, tasks: Sequence[Task]) -> list[Question[Asked]]:
    """The colleague's; for each wrong count two of which it names another part; and those that tell
    two counts apart.
    """
    found = [Asked(tasks[0], calc.Layout(world_size=512, tp=4, pp=2, zero=0))]
    pool = list(some_layouts(rng, tasks))
    answers = [lambda each, parts=parts: of_parts(parts(each)) for _, _, parts in COUNTS]
    for answer in answers:
        found += [each for each in pool if answer(each)[0] != right(each)[0]][:2]
    for one, other in combinations(answers, 2):
        if all(one(each) == other(each) for each in found):
            found += [each for each in pool if one(each) != other(each)][:1]
    return [
        Question("why_not", (each.task.as_dict, each.as_dict), str(each), each) for each in found
    ]

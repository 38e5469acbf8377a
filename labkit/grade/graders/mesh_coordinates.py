"""mesh_coordinates is graded on meshes, ranks and nodes drawn for each check, counted out."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.comm.words import listed
from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, agree
from labkit.grade.graders.mesh_group_theories import GROUPS
from labkit.grade.graders.mesh_node_theories import CROSSINGS
from labkit.grade.graders.mesh_questions import (
    Asked,
    draw,
    right_coordinates,
    right_crossing,
    right_group,
)
from labkit.grade.graders.mesh_theories import COORDINATES

_NAMES = {
    "coordinates": "other coordinates",
    "group": "another group",
    "crosses_nodes": "wrong about nodes",
}


class MeshCoordinates(ByTheory[Asked]):
    """The grader of mesh_coordinates."""

    functions: Sequence[str] = ("coordinates", "group", "crosses_nodes")
    answers_are_in: Sequence[str] = ("mesh", "calc", "grade/graders")
    arguments_stay = True
    rights: Mapping[str, Any] = {
        "coordinates": right_coordinates,
        "group": right_group,
        "crosses_nodes": right_crossing,
    }
    theories = {"coordinates": COORDINATES, "group": GROUPS, "crosses_nodes": CROSSINGS}
    shown_by_a_pass = (
        "you know where a rank is in any mesh, whom it talks to along one axis and along several, "
        "and which of these groups leave the node, axes of one rank and odd sizes included"
    )

    def questions(self, rng: random.Random) -> list[Question[Asked]]:
        """Fresh meshes."""
        return draw(rng)

    def wrong_form(self, function: str, answer: Any) -> str:
        """A dict of whole numbers, a list of them, or True and False."""
        if function == "coordinates":
            is_form = isinstance(answer, dict) and _are_whole(list(answer.values()))
            return "" if is_form else 'a dict of whole numbers, such as {"dp": 0, "tp": 3}'
        if function == "group":
            is_form = isinstance(answer, list | tuple) and _are_whole(answer)
            return "" if is_form else "a list of ranks, such as [1, 5, 9]"
        return "" if type(answer) is bool else "True or False"

    def unexplained(self, function: str, pairs: Sequence[tuple[Asked, Any]]) -> tuple[str, str]:
        """On which meshes it is wrong."""
        right = self.rights[function]
        wrong = [asked for asked, answer in pairs if not agree(answer, right(asked))]
        traits = {
            "a single axis": lambda asked: len(asked.sizes) == 1,
            "an axis of one rank": lambda asked: 1 in asked.lengths,
            "several axes joined": lambda asked: len(asked.axes) > 1,
            "nodes that the mesh does not fill": lambda asked: (
                asked.gpus_per_node > 0 and asked.num_ranks % asked.gpus_per_node > 0
            ),
        }
        common = [name for name, has in traits.items() if all(map(has, wrong))]
        where = f", all of them with {listed(common)}" if common else ""
        return (
            _NAMES[function],
            f"{len(wrong)} of {len(pairs)} answers are wrong{where}. Write down the ranks of a "
            "small mesh, dp 2 x tp 3, row by row, and go through your lines with rank 4",
        )

    def tried(self, questions: Sequence[Question[Asked]]) -> str:
        """`210 questions about 16 meshes`"""
        num_meshes = len({each.known.sizes for each in questions})
        return f"{len(questions)} questions about {num_meshes} meshes"


def _are_whole(values: Sequence[Any]) -> bool:
    return all(type(value) is int for value in values)


GRADER = MeshCoordinates()

"""Wrong ideas of which groups leave a node, and what they say of each."""

from labkit.grade.by_theory import Theory
from labkit.grade.graders.mesh_group_theories import ONE_AXIS, first_is_fastest, only
from labkit.grade.graders.mesh_questions import Asked, right_group
from labkit.grade.graders.mesh_theories import SLOWEST_FIRST


def nodes(asked: Asked, ranks: list[int]) -> set[int]:
    """Of some ranks."""
    return {rank // asked.gpus_per_node for rank in ranks}


def _span(asked: Asked) -> int:
    right = right_group(asked)
    return right[-1] - right[0]


def _next_in_group(asked: Asked) -> int:
    right = right_group(asked)
    return right[(right.index(asked.rank) + 1) % len(right)]


_TWO = (
    "looks at two ranks of the group only",
    "two neighbours may share a node where others do not: the first and the last of the group "
    "decide, since nodes go up with the numbers",
)

CROSSINGS: tuple[Theory[Asked], ...] = (
    Theory(
        "goes by the size of the group and not by its span",
        "8 ranks that are 8 apart are on 8 nodes, though 8 fit on one: what matters is from where "
        "to where the numbers go",
        lambda asked: len(right_group(asked)) > asked.gpus_per_node,
        1,
    ),
    Theory(
        "goes by the span and not by where the group begins",
        "a group whose span fits on a node can begin in the middle of one and end on the next: "
        "ranks 3 4 5 on nodes of 4. Compare the nodes of the first and the last",
        lambda asked: _span(asked) >= asked.gpus_per_node,
        2,
    ),
    Theory(
        "goes by the span and not by where the group begins",
        "a span of gpus_per_node is one too many already, and a shorter one can begin in the "
        "middle of a node: compare the nodes of the first and the last",
        lambda asked: _span(asked) > asked.gpus_per_node,
        2,
    ),
    Theory(*SLOWEST_FIRST, lambda asked: len(nodes(asked, first_is_fastest(asked))) > 1),
    Theory(*_TWO, lambda asked: len(nodes(asked, [asked.rank, _next_in_group(asked)])) > 1, 3),
    Theory(*_TWO, lambda asked: len(nodes(asked, right_group(asked)[:2])) > 1, 3),
    Theory(*_TWO, lambda asked: len(nodes(asked, [asked.rank, right_group(asked)[0]])) > 1, 3),
    Theory(*_TWO, lambda asked: len(nodes(asked, [asked.rank, right_group(asked)[-1]])) > 1, 3),
    Theory(
        "asks about the whole mesh",
        "the mesh may have many nodes, and its group along the last axis be on one of them",
        lambda asked: asked.num_ranks > asked.gpus_per_node,
    ),
    Theory(
        "takes the place on a node for the node",
        "rank // gpus_per_node is the node, rank % gpus_per_node the place on it",
        lambda asked: len({rank % asked.gpus_per_node for rank in right_group(asked)}) > 1,
        3,
    ),
    Theory(
        "says the opposite",
        "True is for a group that has ranks on more than one node",
        lambda asked: len(nodes(asked, right_group(asked))) == 1,
        3,
    ),
    Theory(*ONE_AXIS, lambda asked: len(nodes(asked, only(asked, 0))) > 1),
    Theory(*ONE_AXIS, lambda asked: len(nodes(asked, only(asked, -1))) > 1),
)

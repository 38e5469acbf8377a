"""Operations numbered as a learner counts them: from 1, in each call of the function.

A journal counts what a group has done since the launch. That takes in the calls of earlier cases,
the harness's own meetings between them, and the groups that a grader makes. In a verdict
`all_reduce #3` is the third that the learner's function has made.
"""

import dataclasses
from collections import Counter
from collections.abc import Hashable

from labkit.comm.operation import Operation, Timeline
from labkit.grade.harness import REGION

# No exercise allows these: where they are, the grader has made or closed a group.
_THE_GRADERS = ("split", "close")


def counted(timeline: Timeline) -> Timeline:
    """The same journal, with the numbers that operations have in their case."""
    starts_s = [region.start_s for region in timeline.regions if region.name.startswith(REGION)]
    counts: Counter[Hashable] = Counter()
    operations = []
    for operation in timeline.operations:
        if operation.kind not in _THE_GRADERS:
            case = sum(start_s <= operation.posted_s for start_s in starts_s)
            queue = (case, *_queue(operation))
            counts[queue] += 1
            operation = dataclasses.replace(operation, sequence=counts[queue])
        operations.append(operation)
    return dataclasses.replace(timeline, operations=operations)


def _queue(operation: Operation) -> tuple[Hashable, ...]:
    """What it is numbered in: its group's collectives, or the messages to or from one peer."""
    if operation.is_collective:
        return (operation.group_name,)
    return (operation.group_name, operation.kind, operation.peer)

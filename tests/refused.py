"""Wrong arguments on every rank: the error of each call, and that nothing was sent for it.

assert_refused(
    (lambda world: ring_all_gather(x, 9, world), ValueError, "holds 5 of 9"),
    ...
)
"""

import re

from labkit import run


def _errors(world, calls):
    """The class and the message of each call's error."""
    found = []
    for call in calls:
        try:
            call(world)
            found.append(("nothing", ""))
        except (TypeError, ValueError, RuntimeError) as error:
            found.append((type(error).__name__, str(error)))
    return found


def assert_refused(*rows, world_size=2):
    """Each row: call(world), the class of its error, and a pattern that its message has."""
    result = run(_errors, world_size, ([call for call, *_ in rows],))
    for timeline in result.timeline:
        assert [each for each in timeline.operations if each.kind != "split"] == []
    for errors in result.values:
        for (_, error, words), (kind, said) in zip(rows, errors, strict=True):
            assert kind == error.__name__ and re.search(words, said), (words, kind, said)

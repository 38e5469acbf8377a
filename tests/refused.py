"""Wrong arguments on every rank: the error of each call, and that nothing was sent for it.

assert_refused(
    (lambda world: ring_all_gather(x, 9, world), ValueError, "holds 5 of 9"),
    ...
)
"""

import re

from labkit import run


def messages_of(*calls):
    """The message of each call's TypeError or ValueError; calls that raise none are left out."""
    found = []
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            found.append(str(error))
    return found


def _errors(world, calls, make):
    """The class and the message of each call's error."""
    made = make(world)
    found = []
    with world.region("refusing"):
        for call in calls:
            try:
                call(world) if made is None else call(world, made)
                found.append(("nothing", ""))
            except (TypeError, ValueError, RuntimeError) as error:
                found.append((type(error).__name__, str(error)))
    return found


def assert_refused(*rows, world_size=2, make=lambda world: None):
    """Each row: call(world), the class of its error, and a pattern that its message has.

    make(world) runs before all calls. Where it returns something, it is call(world, something).
    """
    result = run(_errors, world_size, ([call for call, *_ in rows], make))
    for timeline in result.timeline:
        start_s = timeline.regions[-1].start_s
        sent = [op for op in timeline.operations if op.posted_s > start_s and op.kind != "split"]
        assert sent == []
    for errors in result.values:
        for (_, error, words), (kind, said) in zip(rows, errors, strict=True):
            assert kind == error.__name__ and re.search(words, said), (words, kind, said)

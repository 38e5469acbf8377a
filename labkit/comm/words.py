"""Ranks and operations, as a report names them."""

from collections.abc import Callable, Iterable, Sequence

from labkit.comm.operation import Operation, Site

Place = Callable[[Site], str]
"""How a line is shown: `cell 7, line 12` in a notebook, `train.py:12` elsewhere."""

_LONGEST = 60


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def ranks_named(ranks: Iterable[int]) -> str:
    """`rank 1`, or `ranks 0, 2 and 3`."""
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' if len(numbers) > 1 else ''} {listed(numbers)}"


_PLURALS = {"has": "have", "was": "were", "is": "are", "passes": "pass"}


def verb(many: Sequence[object], one: str) -> str:
    """The form of a verb that fits the number of its subjects: `waits`, or `wait`."""
    return one if len(many) == 1 else _PLURALS.get(one, one.removesuffix("s"))


def shortened(text: str) -> str:
    """A text for a line of a report; the end of a long one is left out."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def named(operation: Operation) -> str:
    """`all_reduce #4`; outside the world with its group, `send #1 of group pair to rank 2`."""
    if operation.group_name in ("world", ""):
        return operation.name
    is_torchs = operation.group_name.startswith("torch.distributed")
    which = f"{operation.kind} #{operation.sequence}"
    group = f"{'' if is_torchs else 'group '}{operation.group_name}"
    return f"{which} of {group}{operation.name.removeprefix(which)}"


def known_as(operation: Operation) -> str:
    """`named`; a message that labkit sends for a call has the name of the call, `model(x)`."""
    if operation.is_part_of_a_call and not operation.is_collective:
        return shortened(operation.origin.text)
    return named(operation)


def purpose(operation: Operation) -> str:
    """What labkit sends it for, before a place: `weights of 0; `. Empty where nothing says so."""
    return f"{operation.label}; " if operation.label and operation.is_part_of_a_call else ""


def places(operations: Iterable[Operation], place: Place) -> str:
    """The readers' own lines, each once: `cell 7, line 3 and cell 7, line 9`."""
    return listed(list(dict.fromkeys(place(operation.origin) for operation in operations)))

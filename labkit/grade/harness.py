"""What a rank does while it is graded: call the code under test, case by case, and keep records.

Nothing here judges. The driver does, from the records, the inputs that it made up itself and the
journals (judge.py).
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch

from labkit.comm import Group
from labkit.grade.code import Code
from labkit.grade.exchange import Arguments, Exchange, Record
from labkit.grade.gate import Gate
from labkit.grade.watched_group import WatchedGroup

REGION = "\x02case "  # regions in the journal that say which operations belong to which case
MARK = "\x02case "  # lines in the output that say what was printed when


Call = Callable[[Callable[..., Any], Arguments, WatchedGroup], object]
"""How the code under test is called with a case's inputs, and what of it is to be judged."""


def directly(function: Callable[..., Any], arguments: Arguments, group: WatchedGroup) -> object:
    """With the inputs as they are, and the group; what it returns is judged."""
    return function(*arguments, group)


@dataclass(frozen=True)
class Job:
    """The code under test, and how it is run. Travels to every rank."""

    exchange: Exchange
    code: Code
    """It has one function."""
    allowed: tuple[str, ...]
    delays_s: tuple[tuple[float, ...], ...]
    """Longest sleep before an operation, by case and rank."""
    altered: tuple[tuple[int, int] | None, ...]
    """(rank, number of the message that it receives changed), by case."""
    call: Call = directly
    num_arguments: int | None = None
    """Of the code under test, the group included; None: the inputs and the group."""


def attempt_cases(world: Group, job: Job) -> None:
    """Run on every rank: the code under test on all its cases. Raises what that code raises."""
    cases = job.exchange.take_arguments(world.rank)
    _meet(world)  # from here on no rank's inputs are on disk
    gate = Gate(job.allowed)
    group = WatchedGroup(world, gate, job.allowed)
    outputs: list[object] = []  # kept, so that no two can have the same memory by chance
    with gate:
        function = job.code.load(job.code.functions[0], job.num_arguments or len(cases[0]) + 1)
        for index, arguments in enumerate(cases):
            rank, number = job.altered[index] or (None, None)
            group.begin_case(
                job.delays_s[index][world.rank], number if rank == world.rank else None
            )
            with gate.opened():
                _meet(world)
            print(f"{MARK}{index}", flush=True)
            with world.region(f"{REGION}{index}"):
                record, error = _attempt(function, arguments, group, outputs, job.call)
            job.exchange.put_record(index, world.rank, record)
            if error is not None:
                raise error


def _meet(world: Group) -> None:
    """No rank is in the next case while another is in this one: messages cannot mix.

    An all-reduce of one number; gloo's barrier takes ten times as long.
    """
    token = torch.zeros(1)
    world.all_reduce(token, out=token)


def _attempt(
    function: Callable[..., Any],
    arguments: Arguments,
    group: WatchedGroup,
    outputs: list[object],
    call: Call,
) -> tuple[Record, BaseException | None]:
    """One case. Catches everything, sys.exit too: the record comes first.

    outputs: of earlier cases; this one's is added.
    """
    output, error = None, None
    try:
        output = call(function, arguments, group)
        group.end_case()
    except BaseException as raised:
        error = raised
    broken = group.gate.broken[0] if group.gate.broken else None
    record = Record(
        output=_copy(output) if is_plain_tensor(output) else None,
        output_type=type(output).__name__,
        arguments=[each.detach() for each in arguments if isinstance(each, torch.Tensor)],
        shares_memory=any(
            _share_memory(part, argument) for part in _parts(output) for argument in arguments
        ),
        raised="" if error is None else type(error).__name__,
        broken_rule="" if broken is None else type(broken).__name__,
        rule_message=str(broken or ""),
        rule_site=[] if broken is None else list(astuple(broken.site)),
        returned_before=any(
            _share_memory(part, earlier) for part in _parts(output) for earlier in outputs
        ),
        outputs=[_copy(part) for part in _parts(output)]
        if all(is_plain_tensor(part) for part in _parts(output))
        else [],
    )
    outputs += _parts(output)
    return record, error


def _parts(output: object) -> list[object]:
    """What came back, one by one: a tuple or a list has several."""
    return list(output) if isinstance(output, tuple | list) else [output]


def _copy(tensor: Any) -> torch.Tensor:
    """Its values as they are now, as a plain tensor."""
    return torch.Tensor.clone(tensor.detach().as_subclass(torch.Tensor))


def is_plain_tensor(value: object) -> bool:
    """Whether its values can be told: no sparse one, none on another device."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
    )


def _share_memory(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if one is other:
        return True
    if not is_plain_tensor(one) or not is_plain_tensor(other) or not one.numel():
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()

"""Every fault of examples/faults.py gets the verdict that names its rank, operation and line."""

import importlib.util
import inspect
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cloudpickle
import pytest
import torch

from labkit import Deadlock, Mismatch, RankError, RunTimeout, run
from labkit.launch.diagnosis.verdict import Fault

pytestmark = pytest.mark.alone

_SPEC = importlib.util.spec_from_file_location(
    "faults", Path(__file__).parents[2] / "examples" / "faults.py"
)
faults = importlib.util.module_from_spec(_SPEC)
sys.modules["faults"] = faults
_SPEC.loader.exec_module(faults)
cloudpickle.register_pickle_by_value(faults)

OTHERS = {2: "rank 0", 3: "ranks 0 and 2", 4: "ranks 0, 2 and 3"}
# name -> (error, fault, what the verdict says; {others} are all ranks but rank 1)
VERDICTS = {
    "never_calls": (
        RunTimeout,
        Fault.SLOW,
        "{others} wait.? in all_reduce #1 .* for rank 1, which (computes|sleeps or blocks) before",
    ),
    "returns_early": (
        Deadlock,
        Fault.LEFT,
        "{others} wait.? in all_reduce #4 .*; rank 1 returned after all_reduce #3 .*"
        "without calling it",
    ),
    "another_collective": (
        Mismatch,
        Fault.MISMATCH,
        "(?=.*rank 1 calls barrier #1)(?=.*{others} calls? all_reduce #1)",
    ),
    "another_shape": (Mismatch, Fault.MISMATCH, r"in all_reduce #1, .*rank 1 passes shape \(3,\)"),
    "another_dtype": (Mismatch, Fault.MISMATCH, "in all_reduce #1, .*rank 1 passes float64"),
    "swapped_calls": (
        Mismatch,
        Fault.MISMATCH,
        r"as all_reduce #1 rank 0 calls world.all_reduce\(weight\) .*rank 1 "
        r"world.all_reduce\(bias\).*as all_reduce #2 rank 0 calls world.all_reduce\(bias\)",
    ),
    "loop_in_another_order": (
        Mismatch,
        Fault.MISMATCH,
        "in all_reduce #1, (?=.*rank 1 gives label .weight.)(?=.*{others} gives? label .bias.)",
    ),
    "popped_in_another_order": (
        Mismatch,
        Fault.MISMATCH,
        r"as all_reduce #1 rank 0 calls world.all_reduce\(waiting.pop\(\)\) for bias .*rank 1 "
        r".* for weight .*; as all_reduce #2 rank 0 .* for weight",
    ),
    "hooks_in_another_order": (
        Mismatch,
        Fault.MISMATCH,
        r"as all_reduce #1 rank 0 calls world.all_reduce\(p.grad / world.size\) for "
        r"model\.1\.weight .*rank 1 .* for model\.0\.weight .*; as all_reduce #2 rank 0 ",
    ),
    "messages_in_another_order": (
        Mismatch,
        Fault.MISMATCH,
        "send #1 to rank 1 from rank 0 .* has label bias, but the buffer that rank 1 receives it in"
        " .* has label weight",
    ),
    "weights_in_another_order": (
        Mismatch,
        Fault.MISMATCH,
        r"rank 0 sends in another order than rank 1 receives: message #1 is model\.0\.weight where "
        r"it is sent .* and model\.1\.weight where it is received .*; message #2 is model\.1",
    ),
    "another_reduce_op": (Mismatch, Fault.MISMATCH, "in all_reduce #1, .*rank 1 reduces by max"),
    "send_against_send": (
        Deadlock,
        Fault.CIRCLE,
        "ranks 0 and 1 wait for each other: rank 0 in send #1 to rank 1 .*"
        "rank 1 in send #1 to rank 0",
    ),
    "another_root": (
        Mismatch,
        Fault.MISMATCH,
        "in broadcast #1, .*rank 1 names rank 1 as the root",
    ),
    "receives_what_nobody_sends": (
        Deadlock,
        Fault.LEFT,
        "rank 0 waits in recv #1 from rank 1 .*; rank 1 returned after barrier #1 .*"
        "without sending it",
    ),
    "everybody_receives_first": (
        Deadlock,
        Fault.CIRCLE,
        "wait (for each other|in a circle).*rank 1 in recv #1 from rank 0",
    ),
    "message_too_long": (
        Mismatch,
        Fault.MISMATCH,
        r"send #1 to rank 0 from rank 1 .*shape \(5,\).*rank 0 receives it in .*shape \(3,\)",
    ),
    "message_too_short": (
        Mismatch,
        Fault.MISMATCH,
        r"send #1 to rank 0 from rank 1 .*shape \(2,\).*rank 0 receives it in .*shape \(3,\)",
    ),
    "uneven_rows": (
        Mismatch,
        Fault.MISMATCH,
        "in all_to_all #1, rank 1 sends rank 0 3 rows .*rank 0 expects 2",
    ),
    "groups_in_another_order": (
        Deadlock,
        Fault.CIRCLE,
        "ranks 0 and 1 wait for each other: rank 0 in all_reduce #1 of group world.1.0 .*"
        "rank 1 in all_reduce #1 of group world.2.0",
    ),
    "not_a_member": (RankError, None, "rank 1 uses all_reduce of a group .*does not belong to"),
    "is_killed": (RankError, None, "rank 1 died: .*SIGKILL"),
    "raises": (RankError, None, "rank 1 raised KeyError"),
    "torchs_own_ddp": (
        Deadlock,
        Fault.LEFT,
        r"{others} waits? in all_reduce #\d+ of torch.distributed .*; rank 1 returned",
    ),
    "torchs_own_all_reduce": (
        Mismatch,
        Fault.MISMATCH,
        r"in all_reduce #1 of torch.distributed, .*rank 1 passes shape \(3,\)",
    ),
    "torchs_own_reduce_op": (
        Mismatch,
        Fault.MISMATCH,
        "in all_reduce #1 of torch.distributed, .*rank 1 reduces by max",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def ready():
    """What ranks are forked from has imported torch: one of the faults has 2.5 s in all."""
    run(lambda world: None, 1, timeout=120)


def marked_lines(program):
    """The lines that a verdict on the program must name."""
    lines, first = inspect.getsourcelines(program)
    return [first + n for n, line in enumerate(lines) if line.rstrip().endswith("# <-")]


def test_no_fault_of_the_table_goes_untested():
    assert set(faults.FAULTS) == set(VERDICTS) | {"straggles"}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_names_rank_operation_and_line(name):
    with ThreadPoolExecutor() as pool:  # side by side: most of the time they wait
        list(pool.map(partial(require_verdict, name), OTHERS))


def require_verdict(name, world_size):
    program = faults.FAULTS[name]
    error_class, fault, said = VERDICTS[name]
    with pytest.raises(error_class) as caught:
        run(program, world_size, timeout=2.5 if error_class is RunTimeout else 20, stall=1.0)
    error, text = caught.value, str(caught.value)
    assert type(error) is error_class, world_size
    assert re.search(said.format(others=OTHERS[world_size]), text.splitlines()[0]), text
    assert (error.verdict and error.verdict.fault) == fault, text
    for line in marked_lines(program):
        assert f"faults.py, line {line}" in text or f'faults.py", line {line} in' in text, text


def test_a_straggler_is_told_and_let_go_on(capsys):
    run(faults.straggles, 3, stall=1.0)
    lines = capsys.readouterr().out.splitlines()
    told = " ".join(lines)
    assert told.count("[labkit]") == 1
    assert "ranks 0 and 2 wait in all_reduce #1" in told
    assert re.search("for rank 1, which (computes|sleeps or blocks) before", told)
    assert len(lines) > 1 and max(map(len, lines)) <= 96, "a page would break it within a word"


def test_a_mismatch_is_caught_before_any_number_is_wrong():
    def another_op(world):
        world.all_reduce(torch.ones(3), "max" if world.rank else "sum")

    with pytest.raises(Mismatch) as caught:
        run(another_op, 2)
    posted = [operation for timeline in caught.value.timeline for operation in timeline.operations]
    assert len(posted) == 2
    assert any(operation.failed for operation in posted), "one rank refused, or both"
    assert all(operation.failed or operation.done_s is None for operation in posted)

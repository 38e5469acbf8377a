"""`%%ranks` and `%ranks` in a real Jupyter kernel, as a reader meets them."""

import re

import pytest
from nbval.kernel import CURRENT_ENV_KERNEL_NAME

from tests.forked_kernels import start_forked_kernel
from tests.processes import are_gone_within, wait_until_still

HAS_ENDED = "the session has ended: the next cell starts 3 new ranks, without the variables"


class Kernel:
    """A kernel of this Python, and what its cells show."""

    def __init__(self):
        self.manager, self.client = start_forked_kernel(kernel_name=CURRENT_ENV_KERNEL_NAME)
        self.run("%load_ext labkit")
        # A rank that computes in Python answers in milliseconds; on a busy machine it takes longer.
        self.run("from labkit.launch.session import ranks")
        self.run("ranks._INTERRUPT_WAITS_S = (0.1, 60)")

    def run(self, source, stop_at=None, timeout=600):
        """(printed, shown value, traceback) of a cell.

        Stop is pressed once all three ranks have printed `stop_at` and their process id, and rest.
        """
        message_id = self.client.execute(source)
        printed, value, traceback = "", "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
                if stop_at and len(found := re.findall(rf"{stop_at} (\d+)\n", printed)) == 3:
                    wait_until_still(map(int, found))
                    self.manager.interrupt_kernel()
                    stop_at = None
            elif kind == "execute_result":
                value = content["data"]["text/plain"]
            elif kind == "error":
                traceback = "\n".join([content["ename"], *content["traceback"]])
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, value, traceback

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture(autouse=True)
def three_ranks(kernel):
    """Every test begins with three ranks that know `kept`."""
    printed, value, traceback = kernel.run("%%ranks 3\nkept = rank\nkept")
    assert (value, traceback) == ("rank 0: 0\nrank 1: 1\nrank 2: 2", ""), printed


def test_variables_stay_and_values_are_shown_by_rank(kernel):
    printed, value, _ = kernel.run(
        "%%ranks\nprint('hi')\nkept = world.all_reduce(kept + torch.ones(1))"
    )
    assert sorted(printed.splitlines()) == ["[rank 0] hi", "[rank 1] hi", "[rank 2] hi"]
    assert value == ""
    assert kernel.run("%%ranks\nkept")[1] == "ranks 0, 1 and 2: tensor([6.])"
    assert kernel.run("%%ranks\nkept;") == ("", "", "")
    assert kernel.run("%%ranks --on 0,2\nrank")[1] == "rank 0: 0\nrank 2: 2"


def test_the_last_cells_run_is_at_hand(kernel):
    kernel.run("%%ranks\nworld.all_reduce(torch.ones(3))\nNone")
    _, value, _ = kernel.run("last = %ranks last\nlast.traffic[1].by_operation['all_reduce'].count")
    assert value == "1"


def test_an_error_has_the_cells_number_its_lines_and_its_source(kernel):
    number = int(kernel.run("len(In)")[1])  # In[0] is empty, so this is the next cell's
    source = (
        "%%ranks\n\ndef divide(x):\n    return x / 0  # here\n\nif rank == 1:\n    divide(kept)"
    )
    _, _, traceback = kernel.run(source)
    assert traceback.startswith("RankError\nRankError: rank 1 raised ZeroDivisionError")
    assert f"at cell {number}, line 4" in traceback
    assert f"Cell {number}, line 7, in <module>\n    divide(kept)" in traceback
    assert f"Cell {number}, line 4, in divide\n    return x / 0  # here" in traceback
    assert "labkit/launch" not in traceback
    assert traceback.endswith("the session goes on, with its variables.")


def test_lines_are_counted_from_the_top_of_the_cell_below_other_magics_too(kernel):
    _, _, traceback = kernel.run("%%time\n%%ranks\n1 / 0")
    assert ", line 3, in <module>\n    1 / 0" in traceback


def test_a_deadlock_is_reported_and_the_next_cell_says_that_variables_are_gone(kernel):
    _, _, traceback = kernel.run("%%ranks\nif rank:\n    world.barrier()")
    assert traceback.startswith("Deadlock")
    assert "ranks 1 and 2 wait in barrier" in traceback
    assert traceback.endswith(HAS_ENDED + ".")
    printed, value, _ = kernel.run("%%ranks\n'kept' in globals()")
    assert printed == "3 new ranks: the variables of earlier cells are gone.\n"
    assert value == "ranks 0, 1 and 2: False"


STARTED = "%%ranks --timeout 600\nimport os, time\nprint('started', os.getpid())\n"


def test_stop_reaches_ranks_that_are_blocked_in_cpp(kernel):
    """Not in a deadlock, which the doctor would find meanwhile."""
    _, _, traceback = kernel.run(
        STARTED + "world.barrier() if rank else time.sleep(600)", stop_at="started"
    )
    assert traceback.startswith("Interrupted\nKeyboardInterrupt: stopped")
    assert traceback.endswith(HAS_ENDED + ".")
    assert kernel.run("%%ranks\nrank")[1] == "rank 0: 0\nrank 1: 1\nrank 2: 2"


def test_stop_interrupts_python_and_leaves_the_variables(kernel):
    _, _, traceback = kernel.run(STARTED + "time.sleep(600)", stop_at="started")
    assert "the session goes on" in traceback
    assert kernel.run("%%ranks\nkept")[1] == "rank 0: 0\nrank 1: 1\nrank 2: 2"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("%%ranks 0\nkept = 7", "'0' is not a number of ranks; write %%ranks 4"),
        ("%%ranks four\nkept = 7", "'four' is not a number of ranks; write %%ranks 4"),
        ("%%ranks 2 4\nkept = 7", "2 and 4: give one of them"),
        ("%%ranks 99999999999\nkept = 7", "is more than this machine can start"),
        (f"%%ranks {'9' * 5000}\nkept = 7", "is not a number of ranks; write %%ranks 4"),
        ("%%ranks --on 7\nkept = 7", "this session has ranks 0 to 2"),
        ("%%ranks 2 --on 2\nkept = 7", "this session has ranks 0 to 1"),
        ("%%ranks --on both\nkept = 7", "name ranks by number, with commas, as in --on 0,2"),
        ("%%ranks --timeout never\nkept = 7", "give a number of seconds"),
        ("%%ranks --timeout 0\nkept = 7", "timeout=0.0: seconds above 0"),
        ("%%ranks --device\nkept = 7", "--device needs a value"),
        ("%%ranks --device tpu\nkept = 7", "choose 'cpu' or 'cuda'"),
        ("%%ranks --fast 1\nkept = 7", "--fast is unknown"),
        ("%%ranks\n   ", "the cell is empty"),
        ("%ranks 4", "choose status, restart, stop, push, pull or last"),
        ("%ranks push", "%ranks push takes names"),
        ("%ranks push missing", "the notebook has no variable 'missing'"),
        ("%ranks pull missing", "no variable 'missing' on ranks 0, 1 and 2"),
    ],
)
def test_a_line_that_asks_for_nothing_possible_says_what_is(kernel, source, reason):
    printed, _, _ = kernel.run(source)
    assert printed.startswith("UsageError: %")
    assert reason in printed
    assert kernel.run("%%ranks\nkept")[1] == "rank 0: 0\nrank 1: 1\nrank 2: 2"


@pytest.mark.parametrize(("line", "hint"), [("x = = 1", ""), ("!ls", "works in the notebook only")])
def test_a_syntax_error_shows_its_line_and_sends_nothing(kernel, line, hint):
    _, _, traceback = kernel.run(f"%%ranks\nkept = 7\n{line}")
    assert re.search(rf"Cell \d+, line 3\n +{re.escape(line)}", traceback)
    assert "Nothing was sent to the ranks" in traceback
    assert hint in traceback
    assert kernel.run("%%ranks\nkept")[1] == "rank 0: 0\nrank 1: 1\nrank 2: 2"


def test_another_number_of_ranks_is_a_new_session_and_says_so(kernel):
    printed, value, _ = kernel.run("%%ranks 2\n'kept' in globals()")
    assert (
        printed
        == "2 new ranks on cpu instead of 3 on cpu: the variables of earlier cells are gone.\n"
    )
    assert value == "ranks 0 and 1: False"


def test_values_are_carried_to_the_ranks_and_back(kernel):
    kernel.run("scale = 10\n%ranks push scale")
    kernel.run("%%ranks\nkept *= scale")
    assert kernel.run("%ranks pull kept\nkept")[1] == "[0, 10, 20]"


def test_status_restart_and_stop(kernel):
    printed, _, _ = kernel.run("%ranks status")
    assert re.match(
        r"3 ranks on cpu, \d+ cells? so far.\n  rank 0  process \d+  variables: kept", printed
    )
    printed, _, _ = kernel.run("%ranks restart")
    assert printed == "3 new ranks on cpu: the variables of earlier cells are gone.\n"
    printed, _, _ = kernel.run("%ranks stop")
    assert printed == "The ranks have ended, and their variables are gone.\n"
    assert "No ranks are running" in kernel.run("%ranks status")[0]
    assert "no ranks are running; `%%ranks 4` starts four" in kernel.run("%%ranks\nrank")[0]


@pytest.mark.parametrize("how", ["killed", "shut down"])
def test_no_rank_outlives_its_kernel(how):
    kernel = Kernel()
    value = kernel.run("%%ranks 2\nimport os\nos.getpid()")[1]
    pids = [int(line.split()[-1]) for line in value.splitlines()]
    assert len(pids) == 2
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=how == "killed")
    assert are_gone_within(pids, 60)

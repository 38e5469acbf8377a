"""The same promises inside a real Jupyter kernel: cells, Stop, and the end of the kernel."""

import time

import pytest
from nbval.kernel import CURRENT_ENV_KERNEL_NAME

from tests.forked_kernels import start_forked_kernel, start_new_kernel
from tests.processes import are_gone_within, wait_until_still

HUNG = """
import os, time, torch
from labkit import run

def hung(world):
    print("pid", os.getpid())
    if world.rank == 0:
        time.sleep(600)
    world.all_reduce(torch.ones(1))

run(hung, 3, timeout=600)
"""


@pytest.fixture
def kernel(request):
    """A kernel of this Python, whatever kernels are installed."""
    start = getattr(request, "param", start_forked_kernel)
    manager, client = start(kernel_name=CURRENT_ENV_KERNEL_NAME)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs_until(client, message_id, enough, timeout=600):
    """(stdout so far, error message or None), until `enough(stdout)` or the cell is over."""
    text, error = "", None
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        message = client.get_iopub_msg(timeout=timeout)
        if message["parent_header"].get("msg_id") != message_id:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            text += content["text"]
        elif kind == "error":
            error = content
        elif kind == "status" and content["execution_state"] == "idle":
            return text, error
        if enough(text):
            return text, error
    raise TimeoutError(text)


def rank_pids(text):
    return [int(line.split()[-1]) for line in text.splitlines() if " pid " in line]


def started_hang(client):
    """The message id of the running cell, and the ranks' process ids."""
    message_id = client.execute(HUNG.strip())
    text, _ = outputs_until(client, message_id, lambda text: text.count(" pid ") == 3)
    wait_until_still(rank_pids(text))  # in the all_reduce
    return message_id, rank_pids(text)


# Stop goes to its process group, of which a fork server of its own is a part.
@pytest.mark.parametrize("kernel", [start_new_kernel], indirect=True, ids=["of its own"])
def test_stop_ends_a_hang_names_the_cells_lines_and_leaves_the_kernel_usable(kernel):
    manager, client = kernel
    message_id, pids = started_hang(client)
    manager.interrupt_kernel()
    _, error = outputs_until(client, message_id, lambda text: False)
    assert are_gone_within(pids, 60)
    verdict = "\n".join(error["traceback"])
    assert error["ename"] == "Interrupted"
    assert "ranks 1 and 2 wait in all_reduce #1 (cell 1, line 8) for rank 0" in verdict
    assert "which sleeps or blocks before any operation (cell 1, line 7)" in verdict
    assert "Cell 1, line 8 in hung" in verdict

    message_id = client.execute("run(lambda world: world.rank, 3, timeout=600).values == [0, 1, 2]")
    _, error = outputs_until(client, message_id, lambda text: False)
    assert error is None


@pytest.mark.parametrize("how", ["killed", "shut down"])
def test_the_end_of_the_kernel_is_the_end_of_its_ranks(kernel, how):
    manager, client = kernel
    _, pids = started_hang(client)
    manager.shutdown_kernel(now=how == "killed")
    assert are_gone_within(pids, 60)


def test_an_error_shows_the_cells_source_and_none_of_the_launcher(kernel):
    _, client = kernel
    message_id = client.execute(
        "from labkit import run\n\ndef fails(world):\n    return {}['loss']\n\nrun(fails, 2)"
    )
    _, error = outputs_until(client, message_id, lambda text: False)
    shown = "\n".join(error["traceback"])
    assert "raised KeyError at cell 1, line 4" in shown
    assert "return {}['loss']" in shown
    assert "supervis" not in shown
    assert "labkit/launch" not in shown

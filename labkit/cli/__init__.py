"""labkit in a terminal: the engine of the notebooks, with rich output.

labkit check ring_all_reduce     exit status 0 after a pass, 1 otherwise, 2 for a call that is wrong
labkit puzzle "two ranks" rows.txt    the same
labkit plan --model llama3-70b --cluster h100 --gpus 512    1 where no layout fits
labkit serve checkpoints         a trained GPT, by OpenAI's protocol
labkit doctor                    exit status 0 where runs work, 1 where something prevents them
"""

import multiprocessing
import signal
import sys
from multiprocessing import forkserver, resource_tracker

_WHAT_RANKS_NEED = [
    "labkit.launch.session.session_main",
    "labkit.grade.harness",
    "torch.fx.experimental.symbolic_shapes",  # torch imports it at a rank's first backward()
]


def main() -> None:
    """The command `labkit`."""
    if sys.argv[1:2] in (["check"], ["watch"]):
        _start_fork_server()
    from labkit.cli.commands import main

    main()


def _start_fork_server() -> None:
    """Let the server from which ranks are forked import torch while this process does.

    Without torch._dynamo, which no exercise needs and which takes a second to import.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_WHAT_RANKS_NEED)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

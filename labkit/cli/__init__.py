"""labkit in a terminal: the engine of the notebooks, with rich output.

labkit start my-lab              a copy of the exercises and notebooks, to work in
labkit lab my-lab                JupyterLab on that copy
labkit check ring_all_reduce     exit status 0 after a pass, 1 otherwise, 2 for a call that is wrong
labkit puzzle "two ranks" rows.txt    the same
labkit plan --model llama3-70b --cluster h100 --gpus 512    1 where no layout fits
labkit serve checkpoints         a trained GPT, by OpenAI's protocol
labkit doctor                    exit status 0 where runs work, 1 where something prevents them

Ctrl-C ends each of them with status 130 and without a traceback; it ends a server that serves with
status 0. This file imports almost nothing, so that Ctrl-C is heard while the rest is imported: see
ctrl_c.py. commands.py says which commands there are:

    exercises.py   check, hint, solution, reset, list; watch.py: watch
    practise.py    cards, drill, case, puzzle; mock.py: a timed interview
    calculators.py plan, memory, cache
    machine.py     doctor, preflight, profile, serve
    progress.py    progress, export, import
    start.py       start, update; lab.py: lab; for authors: new.py and bank.py

terminal.py has what they share.
"""

import signal
import sys

from labkit.cli import ctrl_c

_WHAT_RANKS_NEED = [
    "labkit.launch.session.in_rank",
    "labkit.grade.harness",
    "torch.fx.experimental.symbolic_shapes",  # torch imports it at a rank's first backward()
]
# Modules that come with an extra of the package, in pyproject.toml.
EXTRAS = {
    **dict.fromkeys(
        (
            "typer", "rich", "markdown_it", "platformdirs", "watchfiles", "fsrs", "numpy",
            "matplotlib", "PIL", "IPython", "ipykernel", "ipywidgets", "anywidget", "traitlets",
            "jupyterlab", "jupyter_core", "jsonschema",
        ),
        "lab",
    ),
    **dict.fromkeys(("fastapi", "pydantic", "starlette", "uvicorn"), "serve"),
}  # fmt: skip


def main() -> None:
    """The command `labkit`."""
    if sys.argv[1:2] == ["watch"]:  # in the foreground, even if a script made it inherit SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ctrl_c.ends_at_once()
    try:
        if sys.argv[1:2] in (["check"], ["watch"]):
            _start_fork_server()
        from labkit.cli.commands import main

        main()
    except KeyboardInterrupt:
        sys.exit(ctrl_c.INTERRUPTED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        report = f"labkit: {package} is not installed: pip install 'labkit[{EXTRAS[package]}]'"
        print(report, file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        # torch's own code makes one of a Ctrl-C that comes while it is imported.
        if "KeyboardInterrupt" not in str(error):
            raise
        sys.exit(ctrl_c.INTERRUPTED)


def _start_fork_server() -> None:
    """Let the server from which ranks are forked import torch while this process does.

    Without torch._dynamo, which no exercise needs and which takes a second to import.
    """
    import multiprocessing
    from multiprocessing import forkserver, resource_tracker

    multiprocessing.get_context("forkserver").set_forkserver_preload(_WHAT_RANKS_NEED)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

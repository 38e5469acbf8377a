"""Run a function on N ranks with `run`, or cells on ranks that stay, with `Session`.

To follow one run that succeeds, read in this order; nothing else is needed:

    run.py                what happens between the call and the Run
    request.py            the checks of its arguments, and the choice of the device
    payload/__init__.py   the run's folder, and how the function gets to the ranks
    rank_process.py       a rank seen from the driver: its process and its output
    rank.py               a rank seen from inside: from its start to its report
    supervise.py          the driver receives what ranks report
    listen.py             waits until all have returned, or the run cannot end
    run_result.py         the Run

A run that fails: examine.py (evidence), failure.py (which error explains it), errors.py.
Lines that the lab prints: notes.py. The fork server's imports for its ranks: needed_by_steps.py.
The program that torchrun starts on several hosts: payload/__main__.py.

    session/       ranks that keep their variables from cell to cell; begin with session.py
    checkup.py     `labkit doctor`: machine.py has what this machine gives, resources.py judges it

Several hosts, torchrun and saved runs are the room `hosts`.
"""

from labkit.interrupts import uninterrupted

# Ctrl-C waits until torch is imported: its C++ code prints or loses an exception, and a module that
# is half imported stays so until the kernel is restarted.
try:
    with uninterrupted():
        from labkit.launch.errors import (
            Deadlock,
            Interrupted,
            Mismatch,
            RankError,
            RunError,
            RunTimeout,
        )
        from labkit.launch.payload import save_payload
        from labkit.launch.rank_process import warm_up
        from labkit.launch.run import attempt, launch, run
        from labkit.launch.run_result import Run
        from labkit.launch.session.session import Session
except KeyboardInterrupt:
    raise Interrupted("stopped while torch was imported") from None

__all__ = [
    "Deadlock",
    "Interrupted",
    "Mismatch",
    "RankError",
    "Run",
    "RunError",
    "RunTimeout",
    "Session",
    "attempt",
    "launch",
    "run",
    "save_payload",
    "warm_up",
]

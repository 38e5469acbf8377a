"""How a process ended, in words, from its exit code."""

import signal

_HINTS = {
    "SIGKILL": "; from outside, or by the system when memory ran out",
    "SIGABRT": "; an error in C++ that Python could not catch, see its last words",
    "SIGSEGV": "; a crash in C++, see its last words",
    "SIGBUS": "; the folder for temporary files, or /dev/shm, is full; `labkit doctor` says",
}


def cause_of_death(code: int | None) -> str:
    """`code` as in multiprocessing: below 0 the signal's number; None: nobody can say."""
    if code is None:
        return "its process is gone"
    if code >= 0:
        return f"its process exited with code {code}, past the launcher (os._exit?)"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"its process was ended by {name}{_HINTS.get(name, '')}"

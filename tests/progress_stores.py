"""Forked processes that use a store at the same time."""

import os
import pickle
import traceback
from contextlib import suppress


def forked(work, *args):
    """Start work(*args) in a child: (pid, the pipe in which its pickled result arrives)."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    try:
        os.close(read_end)
        with os.fdopen(write_end, "wb") as pipe:
            pickle.dump(work(*args), pipe)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def finished(child):
    """Wait for a child of `forked`, and return its result."""
    pid, read_end = child
    with os.fdopen(read_end, "rb") as pipe:
        sent = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with status {status}; its traceback is above"
    return pickle.loads(sent)


def all_at_once(work, num_processes, *args):
    """work(number, *args) in so many children, that begin together; their results by number."""
    ready, go = os.pipe()

    def begun_together(number):
        os.close(go)
        os.read(ready, 1)  # ends when the parent closes its end
        return work(number, *args)

    children = [forked(begun_together, number) for number in range(num_processes)]
    os.close(go)
    os.close(ready)
    return [finished(child) for child in children]


def as_nobody(work, *args):
    """work(*args) by a user whom file permissions stop, which root is not."""

    def harmless():
        with suppress(PermissionError):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return work(*args)

    return finished(forked(harmless))

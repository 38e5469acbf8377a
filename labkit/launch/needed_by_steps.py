"""Imports and caches that the fork server prepares before it forks the first rank.

torch imports some modules in the first step: SymPy at the first gradient passed to backward(),
Dynamo at the first optimizer or checkpointed block. That takes each rank a second, in the middle of
its measurements. Garbage collection is off, because it would make the imports take 50% longer and
find nothing.

Then the memory is moved into large pages: a fork copies a table with an entry for every page.
"""

import contextlib
import ctypes
import gc
import os
import re
import sys

_LARGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25


def move_into_large_pages() -> None:
    """Move this process's memory into pages of 2 MiB where possible.

    A fork and its end then take 3 ms of CPU time, instead of 12 ms with pages of 4 KiB. Needs Linux
    6.1; on other systems nothing happens.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    private = re.compile(r"(\w+)-(\w+) rw-p \w+ 00:00 0 *(?:\[heap\])?\n")  # belongs to no file
    with open("/proc/self/maps") as maps:
        for start, end in (found.groups() for line in maps if (found := private.fullmatch(line))):
            first = -(-int(start, 16) // _LARGE_PAGE) * _LARGE_PAGE
            length = int(end, 16) // _LARGE_PAGE * _LARGE_PAGE - first
            if length > 0:
                madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_COLLAPSE)


was_on = gc.isenabled()
gc.disable()
# Dynamo makes a folder for Inductor's cache. Remove it: a program that compiles makes it again.
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
is_set = _CACHE in os.environ
try:
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes  # noqa: F401
    from torch._dynamo import trace_rules

    # init_process_group clears Dynamo's caches. If the imports had filled them, each rank would
    # copy 300 pages to free them.
    getattr(trace_rules, "clear_lru_cache", lambda: None)()
finally:
    if was_on:
        gc.enable()
    if not is_set and _CACHE in os.environ:
        with contextlib.suppress(OSError):  # it is in use
            os.rmdir(os.environ.pop(_CACHE))
move_into_large_pages()

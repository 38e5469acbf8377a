"""nccl's rules without a GPU: the operations of a rank are carried out one after the other.

    the host posts     send to 1 | all_reduce of a group | receive from 1
    the stream         each begins when the one before it is complete, whatever its group

A real send waits for its receiver, so two ranks whose orders do not fit wait for ever, as kernels
on one stream do. (nccl has a stream for each group and each pair of ranks. Whether kernels of two
streams run at once is up to the GPU, so a program must not need it.) What starts together, in
`Group.together`, is one entry of the stream.

A result is poisoned until it is waited for: all of its bytes are 0xFF, which is nan or -1.
"""

from collections import deque
from threading import RLock

import torch

from labkit.collectives import backend
from labkit.comm import staging
from labkit.comm.member import Member


def rehearse(world):
    """From now on this rank's operations obey nccl's rules, on groups split off later as well."""
    if isinstance(world._process_group, OnStream):
        return
    stream = Stream()
    staging.through_host = lambda process_group, device: OnStream(process_group, stream)
    world._process_group = OnStream(world._process_group, stream)
    Member.backend = "nccl"
    backend._ON_A_CPU = backend.LIBRARY  # as on a GPU


class Stream:
    """The operations of one rank, in the order in which any of its threads posted them."""

    def __init__(self):
        self._entries = deque()
        self._lock = RLock()

    def put(self, entry):
        self._entries.append(entry)
        return entry

    def work_off(self, last):
        """Carry out all entries up to `last`. A thread that comes meanwhile waits for its turn."""
        with self._lock:
            while not last.is_done:
                self._entries.popleft().perform()


class Entry:
    """Operations that start together. For a Pending it is the backend's handle."""

    def __init__(self, stream):
        self._stream = stream
        self._starts, self._results = [], []
        self._error = None
        self.is_done = False

    def add(self, start, results):
        """`results`: pairs of the caller's tensor and what is copied into it."""
        self._starts.append(start)
        self._results += results

    def perform(self):
        try:
            for work in [start() for start in self._starts]:
                work.wait()
        except BaseException as error:
            self._error = error
        self.is_done = True

    def wait(self):
        self._stream.work_off(self)
        if self._error is not None:
            raise self._error
        for target, result in self._results:
            target.data.copy_(result)
        self._results = []


class OnStream:
    """A process group whose operations go through the stream of its rank."""

    def __init__(self, process_group, stream):
        self._process_group, self._stream = process_group, stream
        self._together = None

    def __getattr__(self, name):
        attribute = getattr(self._process_group, name)
        if name not in staging._ROLES:
            return attribute
        return lambda *arguments: self._post(attribute, staging._ROLES[name], arguments)

    def barrier(self, options):
        return self._put(lambda: self._process_group.barrier(options), [])

    def _start_coalescing(self, device):
        self._together = Entry(self._stream)

    def _end_coalescing(self, device):
        entry, self._together = self._together, None
        return self._stream.put(entry)

    def _post(self, method, roles, arguments):
        results, copies = [], list(arguments)

        def copied(x):
            copy = x.data.clone()
            if place in roles.written:
                results.append((x, copy))
            return copy

        for place in {*roles.read, *roles.written}:
            copies[place] = staging._mapped(copied, arguments[place])
        for target, _ in results:
            target.data.view(-1).view(torch.uint8).fill_(0xFF)
        return self._put(lambda: method(*copies), results)

    def _put(self, start, results):
        entry = self._together or self._stream.put(Entry(self._stream))
        entry.add(start, results)
        return entry

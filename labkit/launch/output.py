"""What ranks print: whole lines, named by rank, as they come."""

import os
import sys
from multiprocessing.connection import Connection

_MAX_SHOWN_LINES = 1000
_MAX_KEPT_BYTES = 16 * 2**20


class RankOutput:
    """One rank's output: kept as its log, shown line by line."""

    def __init__(self, rank: int, pipe: Connection, echo: bool) -> None:
        """echo: print each whole line as `[rank 2] text`."""
        self.rank = rank
        self.pipe = pipe
        self.ended = False
        self._echo = echo
        self._kept = bytearray()
        self._line = bytearray()
        self._num_shown = 0
        os.set_blocking(pipe.fileno(), False)

    @property
    def log(self) -> str:
        """Everything printed so far."""
        text = self._kept.decode(errors="replace")
        return text if len(self._kept) < _MAX_KEPT_BYTES else text + "\n[cut: 16 MiB of output]\n"

    def read(self) -> None:
        """Take what is in the pipe, and show the lines that are whole."""
        while not self.ended:
            try:
                data = os.read(self.pipe.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self.finish()
                return
            self._kept += data[: _MAX_KEPT_BYTES - len(self._kept)]
            self._line += data
            *lines, rest = self._line.split(b"\n")
            self._line = bytearray(rest)
            for line in lines:
                self._show(line)

    def finish(self) -> None:
        """Show a last line that has no end."""
        self.ended = True
        if self._line:
            self._show(self._line)
            self._line.clear()

    def _show(self, line: bytes | bytearray) -> None:
        self._num_shown += 1
        if not self._echo or self._num_shown > _MAX_SHOWN_LINES:
            return
        text = bytes(line).rsplit(b"\r", 1)[-1].decode(errors="replace")
        print(f"[rank {self.rank}] {text}")
        if self._num_shown == _MAX_SHOWN_LINES:
            print(f"[rank {self.rank}] ... the rest of its output is in logs[{self.rank}]")
        sys.stdout.flush()

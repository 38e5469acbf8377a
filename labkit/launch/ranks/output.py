"""What ranks print: whole lines, named by rank, as they come."""

import os
from multiprocessing.connection import Connection

_MAX_SHOWN_LINES = 1000
_MAX_LINE_BYTES = 2**16
_MAX_KEPT_BYTES = 16 * 2**20


class RankOutput:
    """One rank's output: kept as its log, shown line by line."""

    def __init__(
        self, rank: int, pipe: Connection, echo: bool, most_lines: float = _MAX_SHOWN_LINES
    ) -> None:
        """echo: print each whole line as `[rank 2] text`, up to `most_lines` of them."""
        self.rank = rank
        self.pipe = pipe
        self.ended = False
        self._echo = echo
        self._most_lines = most_lines
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
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._grow(line)
                # Taken first: Stop may come while it is printed, and it must not appear twice.
                whole, self._line = self._line, bytearray()
                self._show(whole)
            self._grow(rest)

    def _grow(self, part: bytes) -> None:
        """Add to the line that has no end yet; after a carriage return it begins anew."""
        line = self._line + part
        shown = line.rstrip(b"\r").rpartition(b"\r")[2][-_MAX_LINE_BYTES:]
        self._line = shown + b"\r" if line.endswith(b"\r") else shown

    def finish(self) -> None:
        """Show a last line that has no end."""
        self.ended = True
        if self._line:
            self._show(self._line)
            self._line.clear()

    def _show(self, line: bytearray) -> None:
        self._num_shown += 1
        if not self._echo or self._num_shown > self._most_lines:
            return
        text = line.rstrip(b"\r").decode(errors="replace")
        self._print(text)
        if self._num_shown == self._most_lines:
            self._print(f"... the rest of its output is in logs[{self.rank}]")

    def _print(self, text: str) -> None:
        line = f"[rank {self.rank}] {text}"
        try:
            print(f"{line}\n", end="", flush=True)  # at once: another rank may print meanwhile
        except UnicodeEncodeError:  # a terminal that knows only ASCII
            print(f"{line.encode('ascii', 'backslashreplace').decode()}\n", end="", flush=True)

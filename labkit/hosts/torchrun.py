r"""`labkit.run(..., engine="torchrun")`: the ranks of this host, started by torch's elastic agent.

    this process --- torchrun (a process of its own) --- worker of rank 2 --- rank 2
          \_______________ pipes of rank 2, handed over _______________________/

The agent installs signal handlers and starts its own processes, so it never runs inside a kernel.
What it starts is a worker, which forks the rank and hands the ends of its pipes to this process
(`worker`). From there on all is as with the local engine.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from pathlib import Path

from labkit.comm import owned_folder
from labkit.hosts.hosted_rank import fork_rank
from labkit.interrupts import uninterrupted
from labkit.launch.errors import RunError, RunTimeout
from labkit.launch.payload import RunDirectory
from labkit.launch.rank import RankSpec, end_with_parent
from labkit.launch.rank_process import RankProcess

_LOOK_S = 0.1
_AGENT_EXIT_S = 2.0
_HANDED_OVER_S = 10.0
_LAST_WORDS_LINES = 20
# The path of a socket has 103 characters at most (macOS; on Linux 107), and this is before the end
# of the name: -<process id>-<8 letters>/s.
_LONGEST_START = 103 - len("-4194304-12345678/s")
_PACKAGE = Path(__file__).parents[3]


class Torchrun:
    """One torchrun on this host."""

    def __init__(self, directory: RunDirectory) -> None:
        """directory: of the run."""
        self._directory = directory
        self._agent: subprocess.Popen[bytes] | None = None
        self._ranks: dict[int, RankProcess] = {}
        self._have_all_come = False
        # Not in the run's folder, whose path may be too long for a socket.
        self._meeting = owned_folder.make(_short_folder(), "meet")
        self._socket = socket.socket(socket.AF_UNIX)

    def start(self, specs: Sequence[RankSpec], deadline_s: float) -> None:
        """Start the agent, and return when all ranks have come.

        Raises RunError when torchrun ends before that, and RunTimeout at `deadline_s`.
        """
        address = str(self._meeting / "s")
        self._socket.bind(address)
        self._socket.listen(len(specs))
        self._socket.settimeout(_LOOK_S)
        for spec in specs:
            self._directory.of_rank(spec.rank, "spec").write_bytes(pickle.dumps(spec))
        with self._log.open("wb") as log, uninterrupted():
            self._agent = subprocess.Popen(
                self._command(len(specs), address),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,  # Stop is for this process alone: it ends the others
            )
        while len(self._ranks) < len(specs):
            self._require_agent(deadline_s)
            try:
                worker, _ = self._socket.accept()
            except TimeoutError:
                continue
            with worker, uninterrupted():
                rank = _taken_over(worker)
                if rank is not None:
                    self._ranks[rank.rank] = rank
        self._have_all_come = True

    def rank(self, spec: RankSpec) -> RankProcess:
        """One rank that has come."""
        return self._ranks[spec.rank]

    def end(self) -> None:
        """Neither the agent nor a rank is left when this returns."""
        self._socket.close()
        if self._agent is not None and not self._have_all_come:
            # Workers that still import torch would outlive a killed agent: let it end them.
            self._agent.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._agent.wait(_AGENT_EXIT_S)
        if self._agent is not None and self._agent.poll() is None:
            os.killpg(self._agent.pid, signal.SIGKILL)
            self._agent.wait()
        for rank in self._ranks.values():
            rank.kill()
            rank.release()
        shutil.rmtree(self._meeting, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._directory.path / "torchrun.log"

    def _command(self, num_ranks: int, address: str) -> list[str]:
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--local-addr", "127.0.0.1", "--nproc-per-node", str(num_ranks)),
            *("--log-dir", str(self._directory.path / "torchrun")),
            *("-m", "labkit.hosts.torchrun", address, str(self._directory.path)),
        ]

    def _require_agent(self, deadline_s: float) -> None:
        """Raise RunError where the agent has ended, and RunTimeout where time is up."""
        assert self._agent is not None
        if self._agent.poll() is None and time.monotonic() < deadline_s:
            return
        words = self._log.read_text(errors="replace").splitlines()[-_LAST_WORDS_LINES:]
        text = "\n".join(words)
        if self._agent.poll() is None:
            raise RunTimeout(f"torchrun has not started all ranks in time. Its words:\n{text}")
        raise RunError(
            f"torchrun ended with code {self._agent.returncode} before its ranks were there. "
            f"Its last words:\n{text}"
        )


class WorkerProcess:
    """The process of a rank that is nobody's child here: what its worker says of it."""

    def __init__(self, pid: int, status: Connection) -> None:
        """status: carries the exit code once, then ends."""
        self.pid = pid
        self.sentinel = status
        self.exitcode: int | None = None
        self._has_ended = False

    def is_alive(self) -> bool:
        """The worker has not said that it ended."""
        self.join(0)
        return not self._has_ended

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, `timeout` seconds at most."""
        if self._has_ended or not connection.wait([self.sentinel], timeout):
            return
        self._has_ended = True
        try:
            self.exitcode = int(self.sentinel.recv_bytes())
        except (EOFError, OSError):
            self.exitcode = None  # the worker was ended before it could tell


def _taken_over(worker: socket.socket) -> RankProcess | None:
    """The rank whose pipes a worker hands over; None where it ends before, as the agent will."""
    worker.settimeout(_HANDED_OVER_S)
    try:
        words, descriptors, _, _ = socket.recv_fds(worker, 64, 4)
    except OSError:  # it was ended, or takes too long: then it will find nobody to talk to
        return None
    if not words:
        return None
    rank, pid = map(int, words.split())
    control, output, lifeline, status = (
        Connection(descriptors[0]),
        Connection(descriptors[1], writable=False),
        Connection(descriptors[2], readable=False),
        Connection(descriptors[3], writable=False),
    )
    process = WorkerProcess(pid, status)
    return RankProcess(rank, process, control, output, lifeline)  # type: ignore[arg-type]


def _environment() -> dict[str, str]:
    """The agent's: labkit can be imported, and a slow resolver does not stall it."""
    path = os.pathsep.join(filter(None, [str(_PACKAGE), os.environ.get("PYTHONPATH")]))
    return {"RES_OPTIONS": "timeout:1 attempts:1", **os.environ, "PYTHONPATH": path}


def _short_folder() -> Path:
    """For temporary files; where the path of a socket in it would be too long, /tmp."""
    folder = tempfile.gettempdir()
    is_long = len(f"{folder}/labkit-meet-{socket.gethostname()}") > _LONGEST_START
    return Path("/tmp" if is_long and os.access("/tmp", os.W_OK) else folder)


def worker(address: str, folder: str) -> None:
    """Fork one rank, hand its pipes over, and report its end. torchrun starts this.

    The driver hears the rank itself. This process stays as the rank's parent, because only a parent
    learns how a process ended. address: the driver's socket; folder: of the run.
    """
    end_with_parent()
    number = int(os.environ["RANK"])
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(address)  # before the fork: a driver that is gone needs no rank
        spec: RankSpec = pickle.loads(RunDirectory.at(folder).of_rank(number, "spec").read_bytes())
        rank = fork_rank(spec)
        status, its_status = Pipe(duplex=False)
        pipes = (rank.control, rank.output, rank.lifeline, status)
        words = f"{number} {rank.process.pid}".encode()
        socket.send_fds(driver, [words], [pipe.fileno() for pipe in pipes])
    for pipe in pipes:
        pipe.close()
    rank.process.join()
    with contextlib.suppress(OSError):  # a driver that has heard enough
        its_status.send_bytes(str(rank.process.exitcode).encode())


if __name__ == "__main__":
    worker(*sys.argv[1:])

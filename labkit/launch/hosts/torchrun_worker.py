"""What torchrun starts for `labkit.run(..., engine="torchrun")`: forks the rank, and tells its end.

The driver hears the rank itself, through the pipes that are handed to it here. This process stays
as the rank's parent, because only a parent learns how a process ended.
"""

import contextlib
import os
import pickle
import socket
import sys
from multiprocessing import Pipe

from labkit.launch.hosts.fork import fork_rank
from labkit.launch.ranks.parent import end_with_parent
from labkit.launch.ranks.rank import RankSpec
from labkit.launch.run_directory import RunDirectory


def main(address: str, folder: str) -> None:
    """Serve one rank. address: the driver's socket; folder: of the run."""
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
    main(*sys.argv[1:])

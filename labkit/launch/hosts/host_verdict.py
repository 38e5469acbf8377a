"""One verdict per host of a run that failed, given by the first rank that is left there.

torchrun ends the other ranks of a host as soon as one of them exits: nobody leaves before there is
a verdict.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from labkit.comm.hosts.board import Board
from labkit.launch.hosts import error_file, post_mortem, records
from labkit.launch.hosts.door import knock
from labkit.launch.hosts.hosted_rank import HostedSpec
from labkit.launch.hosts.verdict_record import UNCONFIRMED, RunVerdict

_WRITTEN_WITHIN_S = 15.0
_LAST_LOOK_S = 1.0  # beside the 8 s of wait_for: the others wait 15 s


def see_to_it(
    spec: HostedSpec, board: Board, folder: Path, proof: RunVerdict | None = None
) -> None:
    """Return when this host has a verdict; the first rank that is left of it gives one.

    proof: that ranks waited in vain, where that is what ended the run.
    """
    if _comes_from_another(spec, folder):
        return
    found, gone = records.wait_for(spec.call, board, folder, spec.door)
    if spec.environment.host_number == 0:
        found = {**records.collect(spec.call, board, folder, _LAST_LOOK_S)[0], **found}
    pronounce(post_mortem.of(spec.call, found, gone, proof), spec, folder)


def repeat(verdict: RunVerdict, spec: HostedSpec, folder: Path) -> None:
    """Return when this host has this verdict, or one that was here before it."""
    if not _comes_from_another(spec, folder):
        pronounce(verdict, spec, folder)


def unconfirmed(why: str, spec: HostedSpec, folder: Path) -> None:
    """This rank has returned, and nobody can say whether the run is good: say just that."""
    host = spec.call.places[spec.rank].host
    text = (
        f"rank {spec.rank}, on host {host}, has finished, but it is not confirmed that the run is "
        f"good: {why}. What the ranks of this host returned is in {folder.parent}: "
        "Run.load(..., partial=True) opens it"
    )
    repeat(RunVerdict(text, kind=UNCONFIRMED), spec, folder)


def _comes_from_another(spec: HostedSpec, folder: Path) -> bool:
    """Wait for a verdict of this host, 15 s at most; False when it is for us to give."""
    deadline = time.monotonic() + _WRITTEN_WITHIN_S
    while spec.rank != _speaker(spec) and time.monotonic() < deadline:
        spec.door.answer()
        if _path(spec, folder).exists():
            return True
        time.sleep(0.1)
    return _path(spec, folder).exists()


def _path(spec: HostedSpec, folder: Path) -> Path:
    return folder / RunVerdict.file_name(spec.environment.host_number)


def _speaker(spec: HostedSpec) -> int:
    """The first rank of this host that is there."""
    for rank in spec.environment.local_ranks:
        if rank == spec.rank or knock("127.0.0.1", spec.call.places[rank].door, 1.0) is None:
            return rank
    return spec.rank


def pronounce(verdict: RunVerdict, spec: HostedSpec, folder: Path) -> None:
    """Store the verdict, print it, and leave it where torchrun looks for an error to show.

    Nothing of that where this host has one meanwhile.
    """
    if not verdict.write(folder, spec.environment.host_number):
        return
    print(f"\nlabkit: {verdict.text}\n", file=sys.stderr, flush=True)
    is_of_this_host = verdict.rank in spec.environment.local_ranks
    if not is_of_this_host or verdict.rank in verdict.missing:
        # The rank that is the cause, if there is one, leaves no error of its own here.
        error_file.leave(verdict.text.partition("\n")[0])

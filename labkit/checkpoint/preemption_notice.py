"""PreemptionNotice: save after the signal that comes some seconds before a job is killed.

    Slurm, before the time limit      with #SBATCH --signal=USR1@90: SIGUSR1, 90 s before
    Slurm, preemption                 SIGTERM, and SIGKILL after GraceTime
    Kubernetes, spot machines         SIGTERM, and SIGKILL after 30 s or so

The signal may reach one rank or all, each in another step. If a rank saved at once, the others
would wait for it in the step's collectives. So a handler only notes the signal, and after each step
the ranks exchange what they have noted.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from labkit.checkpoint.plain_data import agreed, result_or_error
from labkit.comm import Group
from labkit.comm.group import chosen


class PreemptionNotice:
    """Report a signal that announces the end of the job on every rank, if any rank received it.

    with PreemptionNotice(world) as notice:
        for step in range(first, num_steps):
            train(...)
            if notice.received():
                checkpointer.save(step + 1)
                notice.requeue()
                break
    """

    def __init__(
        self,
        group: Group | None = None,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGUSR1),
    ) -> None:
        """group: all ranks of the job; None for torch.distributed's default one.

        Enter it on the main thread, where Python runs signal handlers.
        """
        self._group, self._signals = chosen(group), signals
        self._was_signalled = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> PreemptionNotice:
        self._before = {each: signal.signal(each, self._note) for each in self._signals}
        return self

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._was_signalled = True

    def received(self) -> bool:
        """Return True if any rank has received a signal. Every rank calls it after each step.

        Wire: one number in an all-reduce.
        """
        here = torch.tensor([self._was_signalled], dtype=torch.int64, device=self._group.device)
        with self._group.label("preemption notice"):
            return bool(self._group.all_reduce(here, "max").item())

    def requeue(self) -> bool:
        """Let Slurm start the job again, which then loads the checkpoint. Every rank calls it.

        Returns False outside of a Slurm job. RuntimeError, on every rank, if Slurm refuses.
        """
        job = os.environ.get("SLURM_JOB_ID")
        command = ["scontrol", "requeue", str(job)]
        asks = bool(job) and self._group.rank == 0
        done = result_or_error(lambda: asks and subprocess.run(command, check=True))
        agreed(done, RuntimeError, self._group)
        return bool(job)

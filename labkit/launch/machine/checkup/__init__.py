"""What this machine can do for the lab: the engine of `labkit doctor`.

Each function judges one fact and returns a Finding that says, where something is wrong, why it
matters here and what to do. None raises: what a system does not tell is said to be unknown.
"""

import contextlib

from labkit.launch.driver.engine import warm_up
from labkit.launch.machine import machine as machines
from labkit.launch.machine.checkup import resources
from labkit.launch.machine.checkup.finding import Finding, Level
from labkit.launch.machine.checkup.gpu_list import gpus
from labkit.launch.machine.checkup.installed import packages, versions
from labkit.launch.machine.checkup.temp_folder import temporary_files
from labkit.launch.machine.checkup.two_ranks import smoke_run

__all__ = ["Finding", "Level", "check_up"]


def check_up() -> list[Finding]:
    """Every finding, in the order in which to read them; the last is of a real run of two ranks.

    Takes about 3 s, most of it torch's import in the fork server, and at most 8 s; 30 s
    where ranks import modules all that time.
    """
    with contextlib.suppress(Exception):
        warm_up()  # it imports torch while the rest is looked at; if it cannot, smoke_run says so
    machine = machines.look()
    return [
        versions(),
        packages(),
        resources.cores(machine),
        resources.memory(machine),
        resources.shared_memory(),
        temporary_files(),
        resources.open_files(machine),
        resources.processes(machine),
        gpus(),
        smoke_run(),
    ]

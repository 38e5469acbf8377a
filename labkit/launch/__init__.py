"""A function on N ranks: `run`, what it returns, and how it fails; cells on ranks: `Session`."""

from labkit.launch.attempt import attempt
from labkit.launch.driver.engine import warm_up
from labkit.launch.errors import Deadlock, Interrupted, Mismatch, RankError, RunError, RunTimeout
from labkit.launch.payload import save_payload
from labkit.launch.result import Run
from labkit.launch.run import launch, run
from labkit.launch.session.session import Session

__all__ = [
    "Deadlock",
    "Interrupted",
    "Mismatch",
    "RankError",
    "Run",
    "RunError",
    "RunTimeout",
    "Session",
    "attempt",
    "launch",
    "run",
    "save_payload",
    "warm_up",
]

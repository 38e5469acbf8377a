"""A function on N ranks: `run`, what it returns, and how it fails."""

from labkit.launch.engine import warm_up
from labkit.launch.errors import Deadlock, Interrupted, RankError, RunError, RunTimeout
from labkit.launch.result import Run
from labkit.launch.run import launch, run

__all__ = [
    "Deadlock",
    "Interrupted",
    "RankError",
    "Run",
    "RunError",
    "RunTimeout",
    "launch",
    "run",
    "warm_up",
]

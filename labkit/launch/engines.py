"""The engines of `labkit.run`, by name: two ways to start the processes of ranks on this host."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.launch.driver.engine import RankProcess, start_rank
from labkit.launch.hosts.torchrun import Torchrun
from labkit.launch.ranks.rank import RankSpec
from labkit.launch.run_directory import RunDirectory


class Local:
    """The fork server of engine.py."""

    def __init__(self, directory: RunDirectory) -> None:
        """Needs nothing."""

    def start(self, specs: Sequence[RankSpec], deadline_s: float) -> None:
        """Each rank is started when it is asked for."""

    def rank(self, spec: RankSpec) -> RankProcess:
        """One rank, started now."""
        return start_rank(spec)

    def end(self) -> None:
        """Nothing is left: ranks are ended by those who have them."""


ENGINES: dict[str, type[Local] | type[Torchrun]] = {"local": Local, "torchrun": Torchrun}


def check_engine(name: object) -> None:
    """Raises ValueError unless `name` is an engine's."""
    if not isinstance(name, str) or name not in ENGINES:
        raise ValueError(
            f"engine={name!r} is unknown; choose 'local' (fork server, a tenth of a second) or "
            "'torchrun' (torch's elastic agent, some seconds)"
        )

"""What torchrun tells a rank: environment variables, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBERS = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "host_number": "GROUP_RANK",
    "master_port": "MASTER_PORT",
}


@dataclass(frozen=True, slots=True)
class Environment:
    """One rank's place in a job of several hosts.

    `local_rank` counts within the host, `host_number` counts hosts; the store is at
    `master_addr`:`master_port`, on the agent of host 0 (`agent_has_store`) or else on rank 0.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host_number: int
    master_addr: str
    master_port: int
    run_id: str
    agent_has_store: bool

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """From this process's variables. RuntimeError where torchrun did not start it."""
        given = os.environ if variables is None else variables
        missing = [name for name in (*_NUMBERS.values(), "MASTER_ADDR") if not given.get(name)]
        if missing:
            raise RuntimeError(
                f"{', '.join(missing)} not set: torchrun sets these for each rank. Start it as "
                "torchrun --nproc-per-node=4 -m labkit.launch.payload FILE"
            )
        return cls(
            **{field: int(given[name]) for field, name in _NUMBERS.items()},
            master_addr=given["MASTER_ADDR"],
            run_id=given.get("TORCHELASTIC_RUN_ID", "none"),
            agent_has_store=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def local_ranks(self) -> range:
        """The ranks of this host: torchrun numbers them in a row."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_world_size)

    @property
    def is_alone(self) -> bool:
        """All ranks are on this host."""
        return self.local_world_size == self.world_size

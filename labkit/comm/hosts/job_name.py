"""What a job is called, by all its ranks and through all its restarts."""

import secrets

import torch.distributed as dist

from labkit.comm.hosts.environment import Environment

_NO_NAME = "none"  # what torchrun calls a job without --rdzv-id


def name_of_job(environment: Environment, store: dist.Store) -> str:
    """The --rdzv-id; for a job without one, a name that lives as long as torchrun's store."""
    if environment.run_id != _NO_NAME:
        return environment.run_id
    own = f"{_NO_NAME} (no --rdzv-id), {secrets.token_hex(8)}"
    return bytes(store.compare_set("labkit/job", "", own)).decode()

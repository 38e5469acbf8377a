"""What collectives on shards send, as rings perform them.

gloo has no reduce-scatter and performs an all-reduce in its place; exercises count what a ring
would send, from the payloads in the journal.
"""

from collections.abc import Iterable

from labkit.comm.operation import Operation

ROUNDED = (
    "loses digits on the way",
    "every number is nearly right, and float64 holds more digits: something was in a smaller dtype "
    "when it travelled, or when it was added up. That is compression, a decision of its own; here "
    "all tensors travel as they are",
)


def shard_numel(numel: int, num_ranks: int) -> int:
    """Numbers in each rank's shard: an n-th, rounded up."""
    return -(-numel // num_ranks)


def ring_bytes(operations: Iterable[Operation], num_ranks: int) -> int:
    """Sent by one rank, rounded up to whole bytes for each operation."""
    return sum(_of_one(operation, num_ranks) for operation in operations)


def _of_one(operation: Operation, n: int) -> int:
    payload_bytes = operation.payload_bytes
    if operation.kind == "all_gather":
        return (n - 1) * payload_bytes
    times = {"all_reduce": 2, "reduce_scatter": 1}[operation.kind]
    return -(-times * (n - 1) * payload_bytes // n)

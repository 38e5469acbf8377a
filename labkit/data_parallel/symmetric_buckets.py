"""SymmetricBuckets: buckets in shared memory that all ranks of a host have mapped.

    gradient --times 1/n--> bucket, in the rank's row of a SymmetricMemory <--sum-- the other ranks

Every wrapper moves gradients into buckets. Here the other ranks read the buckets in place, and the
sum is written into the memory of `parameter.grad`, so the all-reduce copies nothing in or out.

Memory: the buckets of all ranks lie in /dev/shm, n times the gradients' bytes.
Wire, steps: see labkit/comm/shared_memory/symmetric.py.
"""

from torch import Tensor

from labkit.collectives.backend import Done, Handle
from labkit.comm import Group, SymmetricMemory
from labkit.comm.group import chosen
from labkit.comm.shared_memory.collectives import ALIGNMENT
from labkit.comm.shared_memory.meeting import require_on_host
from labkit.data_parallel.bucketed import Bucket, make_bucket
from labkit.data_parallel.reduction import Reduction


class SymmetricBuckets(Reduction):
    """The all-reduce of one wrapper among ranks of one host. It holds the wrapper's buckets.

        model = DDP(module, world, all_reduce=SymmetricBuckets(world))

    Make one for each DDP or BucketedDDP. It blocks, for about a third of the time of
    shared_memory_all_reduce.
    """

    def __init__(self, group: Group | None = None) -> None:
        """group: None for torch.distributed's default one. ValueError for a group on GPUs.

        Memory is mapped when a wrapper calls `hold`, with OSError if /dev/shm has no room for it.
        """
        self._group = chosen(group)
        require_on_host(self._group)
        self._memory: SymmetricMemory | None = None
        self._held: set[int] = set()

    def place_buckets(self, buckets: list[Bucket]) -> list[Bucket]:
        """Return the buckets, moved to the shared memory. ValueError for another module's buckets.

        They replace earlier buckets of the same parameters.
        """
        parameters = [p for bucket in buckets for p in bucket.parameters]
        members = {id(p) for p in parameters}
        if self._memory is None:
            # Enough for any cut: there are at most as many buckets as parameters.
            nbytes = sum(p.nbytes + ALIGNMENT for p in parameters)
            self._memory = SymmetricMemory(self._group, nbytes)
        elif members != self._held:
            raise ValueError(
                "this SymmetricBuckets holds the buckets of another module, which would be "
                "overwritten; make one for each wrapper"
            )
        self._held = members
        flats = self._memory.carve([(b.flat.numel(), b.flat.dtype) for b in buckets])
        return [_moved(bucket, flat) for bucket, flat in zip(buckets, flats, strict=True)]

    def start(self, x: Tensor, group: Group) -> Handle:
        """Replace `x`, the `flat` of a bucket that is held, by its sum over the ranks.

        ValueError for a group of other ranks, and for a tensor that lies elsewhere.
        """
        if group.ranks != self._group.ranks:
            raise ValueError(
                f"this all-reduce is between ranks {list(self._group.ranks)}, not "
                f"{list(group.ranks)}; make one SymmetricBuckets per group"
            )
        if self._memory is None:
            raise ValueError(
                "this SymmetricBuckets holds no buckets; give it to DDP or BucketedDDP as "
                "all_reduce. For other tensors call shared_memory_all_reduce"
            )
        return Done(self._memory.all_reduce(x))


def _moved(bucket: Bucket, flat: Tensor) -> Bucket:
    """Return the bucket copied into `flat`. Gradients that are views of it move along."""
    members = dict(zip(bucket.names, bucket.parameters, strict=True))
    new = make_bucket(flat.copy_(bucket.flat), bucket.number, members)
    for parameter, old, view in zip(bucket.parameters, bucket.views, new.views, strict=True):
        if parameter.grad is not None and parameter.grad.data_ptr() == old.data_ptr():
            parameter.grad = view.as_subclass(type(parameter.grad))
    return new

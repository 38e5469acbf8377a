"""NaiveDDP: a wrapper that averages gradients with one all-reduce per parameter. The second rung.

It adds checks to plain.py. Ranks compare their modules when they are wrapped. Each reduction checks
that no parameter was added or unfrozen since, and names parameters without a gradient, which
plain.py counts as zeros. Each forward pass in training broadcasts rank 0's buffers. Any all-reduce
can be given.

Layout: parameters, gradients and optimizer state replicated; the batch Shard(0).
Wire: construction broadcasts every parameter and buffer from rank 0. A step sends 2(n-1)/n of the
gradients' bytes per rank, in one all-reduce per parameter. The messages are many and small, which
bucketed.py mends. They come after backward while no rank computes, which overlapped.py mends.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, sections 3.2.1 and 4.1.
"""

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.data_parallel.reduction import AllReduce, library_all_reduce, reduction_of
from labkit.data_parallel.replica import Replica, require_as_wrapped


class NaiveDDP(Replica):
    """A module whose gradients `reduce_gradients` averages over the ranks, parameter by parameter.

        model = NaiveDDP(module, world)
        loss(model, share).backward()
        model.reduce_gradients()
        optimizer.step()

    A tied parameter is reduced once, a frozen one never.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        all_reduce: AllReduce = library_all_reduce,
        *,
        broadcast_buffers: bool = True,
    ) -> None:
        """See `Replica` for the other arguments. TypeError for anything but an all-reduce."""
        reduction = reduction_of(all_reduce)  # refused before anything is sent
        super().__init__(module, group, broadcast_buffers=broadcast_buffers)
        self._reduction = reduction

    def reduce_gradients(self) -> None:
        """Replace each gradient by its mean over the ranks. Call it after backward, on every rank.

        Wire: one all-reduce per trained parameter, of its size.
        Before anything is sent: RuntimeError for a trained parameter without a gradient, and for
        one that was added or unfrozen since the module was wrapped; TypeError for a sparse
        gradient, and for a compressor, which needs buckets.
        """
        require_as_wrapped(self.module, self._as_wrapped, may_be_frozen=True, may_be_converted=True)
        for name, gradient in gradients_of(self).items():
            # Before the sum: in float16 the sum may overflow where the mean does not.
            gradient.div_(self.group.size)
            # Strides may differ by rank, channels_last for example; contiguous ones do not.
            flat = gradient.contiguous()
            with self.group.label(self.label_of(name)):
                self._reduction.start(flat, self.group).wait()
            if flat.data_ptr() != gradient.data_ptr():
                gradient.copy_(flat)


def gradients_of(model: Replica) -> dict[str, Tensor]:
    """Return the gradients of all trained parameters.

    RuntimeError names those without one, TypeError those with a sparse one.
    """
    gradients = {name: p.grad for name, p in model.trainable_parameters.items()}
    if missing := [name for name, gradient in gradients.items() if gradient is None]:
        raise RuntimeError(
            f"rank {model.group.rank} has no gradient for {', '.join(missing)}: its loss did not "
            "use them, and the other ranks would wait for them; use them on every rank, or freeze "
            "them with requires_grad_(False) on every rank before the module is wrapped"
        )
    found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    if sparse := [name for name, gradient in found.items() if gradient.layout is not torch.strided]:
        raise TypeError(
            f"the gradient of {', '.join(sparse)} is sparse, and an all-reduce adds plain numbers; "
            "pass sparse=False to the embedding"
        )
    return found

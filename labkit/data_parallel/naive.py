"""NaiveDDP: every rank has the whole model and its share of the batch. The first rung.

    rank 0   w -> forward, backward on sequences 0 1 -> g0 -+
    rank 1   w -> forward, backward on sequences 2 3 -> g1 -+-> all-reduce: their mean -> the same w
    rank 2   w -> forward, backward on sequence  4   -> g2 -+

Layout: parameters, gradients and optimizer state replicated; the batch Shard(0).
Wire: construction broadcasts every parameter and buffer from rank 0. A step sends 2(n-1)/n of the
gradients' bytes per rank, in one all-reduce per parameter, all of them after backward: many small
messages, and nothing computes meanwhile. The next rungs cure the first, then the second.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 3.2.1.
"""

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.data import Batch, Corpus
from labkit.model import GPT, GPTConfig
from labkit.optimizer import Optimizer
from labkit.train import TrainConfig, Trained, copy_parameters, loss

AllReduce = Callable[[Tensor, Group], Tensor]
"""The sum of x over the ranks of a group, as a new tensor: `ring_all_reduce`, or one of yours."""


def library_all_reduce(x: Tensor, group: Group) -> Tensor:
    """The backend's own all-reduce."""
    return group.all_reduce(x)


class NaiveDDP(nn.Module):
    """A module whose gradients `reduce_gradients` averages over the ranks, parameter by parameter.

        model = NaiveDDP(module, world)
        loss(model, share).backward()
        model.reduce_gradients(len(share) / len(batch))
        optimizer.step()

    `module` keeps its names: save `model.module.state_dict()`. A tied parameter is reduced once, a
    frozen one never. Buffers are broadcast here and not again: those that training changes, like
    the running means of a batch norm, then differ by rank.
    Raises ValueError on a rank whose module differs from rank 0's in more than its values.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        all_reduce: AllReduce = library_all_reduce,
    ) -> None:
        """`group`: None for torch.distributed's default one."""
        super().__init__()
        self.module = module
        self.group = group or Group.default()
        self.all_reduce = all_reduce
        self._require_equal_layouts()
        for tensor in (*module.parameters(), *module.buffers()):
            self.group.broadcast(tensor.data, root=0, out=tensor.data)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns; no communication."""
        return self.module(*args, **kwargs)

    def reduce_gradients(self, weight: float | None = None) -> None:
        """Replace each gradient by its mean over the ranks. Call it after backward, on every rank.

        weight: this rank's part of the global batch, its sequences divided by those of all ranks;
        over the ranks the weights add up to 1. The result is the sum of weight * gradient, which is
        the gradient of the mean over the global batch, whatever the shares. None: 1/n, which is
        right when all shares are equal.

        Wire: one all-reduce per trained parameter, of its size.
        Raises RuntimeError when a trained parameter has no gradient, before anything is sent.
        """
        if weight is None:
            weight = 1 / self.group.size
        if not 0 <= weight <= 1:
            raise ValueError(f"weight={weight} is no part of a whole; pass len(share) / len(batch)")
        for grad in self._gradients():
            grad.mul_(weight)  # before the sum, which in float16 may overflow where the mean fits
            total = self.all_reduce(grad, self.group)
            if total.shape != grad.shape or total.dtype != grad.dtype:
                raise ValueError(
                    f"all_reduce returned {tuple(total.shape)} of {total.dtype} for a gradient "
                    f"{tuple(grad.shape)} of {grad.dtype}; it must return the sum, of that form"
                )
            grad.copy_(total)

    def _gradients(self) -> list[Tensor]:
        trained = [(name, p.grad) for name, p in self.module.named_parameters() if p.requires_grad]
        missing = [name for name, grad in trained if grad is None]
        if missing:
            raise RuntimeError(
                f"rank {self.group.rank} has no gradient for {', '.join(missing)}: its loss did "
                "not use them, and the other ranks would wait for them; use them on every rank, "
                "or freeze them everywhere with requires_grad_(False)"
            )
        return [grad for _, grad in trained if grad is not None]

    def _require_equal_layouts(self) -> None:
        """Broadcasting into other shapes would fill them with garbage, without an error."""
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        layout = [(name, tuple(x.shape), str(x.dtype), x.requires_grad) for name, x in named]
        mine = torch.tensor([zlib.crc32(repr(layout).encode())], device=self.group.device)
        if not torch.equal(self.group.broadcast(mine, root=0), mine):
            raise ValueError(
                f"rank {self.group.rank} has {sum(x.numel() for _, x in named)} numbers in "
                f"{len(named)} tensors, and their names, shapes, dtypes or what is frozen differ "
                "from rank 0; build the module from one config on every rank"
            )


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    all_reduce: AllReduce = library_all_reduce,
) -> Trained:
    """`labkit.train.train_serial` on the ranks of `world`: run(train, 4, args=(config, settings)).

    Every rank returns the losses over the global batch and the parameters; both equal the serial
    ones up to rounding. None: Python's standard library is the corpus.
    """
    batches = settings.batches(corpus, config.context)
    module = GPT(config, settings.seed, settings.dtype).to(world.device)
    model = NaiveDDP(module, world, all_reduce)
    optimizer = settings.make_optimizer(module.parameters())
    parts = [train_step(model, optimizer, batches.at(step)) for step in range(settings.num_steps)]
    # All at once: one loss per step would be a message per step that no step waits for.
    losses = world.all_reduce(torch.tensor(parts, dtype=torch.float64, device=world.device))
    return Trained(losses.tolist(), copy_parameters(module))


def train_step(model: NaiveDDP, optimizer: Optimizer, batch: Batch) -> float:
    """One step on this rank's share of a global batch; its part of the global loss.

    The parts of all ranks add up to the loss. The timeline names the four phases.
    """
    group = model.group
    share = batch.share(group.rank, group.size).to(group.device)
    weight = len(share) / len(batch)
    optimizer.zero_grad()
    with group.region("forward"):
        value = loss(model, share)
    with group.region("backward"):
        value.backward()
    with group.region("reduce"):
        model.reduce_gradients(weight)
    with group.region("optimizer"):
        optimizer.step()
    return value.item() * weight

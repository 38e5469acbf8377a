"""ZeRO-3 (FSDP) in one file: each layer's weights are gathered while it computes, then freed.

    rank 0, 1, 2   shards of layer 0 | layer 1 | layer 2        1/n of each, padded to equal sizes
    forward        gather 0, compute, free | gather 1, compute, free | gather 2, compute, free
    backward       gather 2, compute, free, reduce-scatter 2 | gather 1, ...

autograd does the order. `Gather` is an operation of the graph: its backward is a reduce-scatter.
What a layer saves for backward would keep its weights alive. So a hook saves "a view of layer i's
weights" instead, and the first such view that backward asks for gathers the layer again.

Layout: each rank holds 1/n of parameters, gradients and optimizer states; the batch is sharded.
Wire: 3(n-1)/n of the parameters' bytes per rank and step: two all-gathers, one reduce-scatter.
Papers: Rajbhandari et al., arXiv:1910.02054; Zhao et al., "PyTorch FSDP", arXiv:2304.11277.

    torchrun --nproc-per-node 2 zero3.py        or: python zero3.py, which starts two ranks
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional as F


class ShardedLayer(nn.Module):
    """A layer, of whose flattened parameters this rank keeps one shard."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        parameters = dict(layer.named_parameters())
        flat = torch.cat([p.detach().flatten() for p in parameters.values()])
        dist.broadcast(flat, src=0)  # ranks begin equal
        rank, size = dist.get_rank(), dist.get_world_size()
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.numel = flat.numel()
        self.padding = -self.numel % size
        self.shard = nn.Parameter(F.pad(flat, (0, self.padding)).chunk(size)[rank].clone())
        self.full: Tensor | None = None  # the gathered weights, while they are needed
        self.layer = [layer.to("meta")]  # in a list, so that its parameters are not this module's

    def gather(self) -> Tensor:
        """Return the whole flattened parameters (numel,)."""
        if self.full is None:
            full = self.shard.new_empty(self.numel + self.padding)
            dist.all_gather(list(full.chunk(dist.get_world_size())), self.shard.detach())
            self.full = full[: self.numel]
        return self.full

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output. Afterwards this rank has its shard only."""
        flat = Gather.apply(self.shard, self)
        of_weights = flat.untyped_storage().data_ptr()

        def pack(saved: Tensor) -> Any:
            if saved.untyped_storage().data_ptr() != of_weights:
                return saved
            return saved.shape, saved.stride(), saved.storage_offset()

        def unpack(kept: Any) -> Tensor:
            return kept if isinstance(kept, Tensor) else self.gather().as_strided(*kept)

        with saved_tensors_hooks(pack, unpack):
            views = flat.split([shape.numel() for shape in self.shapes.values()])
            weights = {k: v.view(s) for (k, s), v in zip(self.shapes.items(), views)}
            y = functional_call(self.layer[0], weights, (x,))
        self.full = None
        return y


class Gather(torch.autograd.Function):
    """All-gather forward, reduce-scatter (the mean over ranks) backward."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, layer: ShardedLayer) -> Tensor:
        """Return the whole weights."""
        ctx.layer = layer
        return layer.gather().view(-1)  # a view: the weights themselves are not to be in the graph

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of this rank's shard. The layer's backward is over: free weights."""
        ctx.layer.full = None
        size = dist.get_world_size()
        padded = F.pad(gradient, (0, ctx.layer.padding)) / size
        mine = torch.empty_like(ctx.layer.shard)
        dist.reduce_scatter(mine, list(padded.chunk(size)))
        return mine, None


def make_layers() -> list[nn.Module]:
    """Return the layers of the model, the same for each call."""
    torch.manual_seed(0)
    sizes = (5, 11, 7, 3)
    layers = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in zip(sizes, sizes[1:])]
    return [layer.double() for layer in layers]


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """Return 7 rows, a number that 2, 3 and 4 do not divide: x (7, 5) and targets (7, 3)."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randn(7, k, generator=generator).double() for k in (5, 3))


def loss_of_share(model: nn.Module, step: int, rank: int = 0, size: int = 1) -> Tensor:
    """Return the loss of a rank's rows, so weighted that the mean over ranks is the batch's."""
    x, targets = (each.tensor_split(size)[rank] for each in batch_of(step))
    total = F.mse_loss(model(x), targets, reduction="sum")
    return total * size / batch_of(step)[1].numel()


def main() -> None:
    """Train on all ranks and in one process, and compare."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and .to(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(*map(ShardedLayer, make_layers()))
    serial = nn.Sequential(*make_layers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # states of shards only
    of_serial = torch.optim.AdamW(serial.parameters(), lr=0.01)
    for step in range(10):
        optimizer.zero_grad()
        loss_of_share(model, step, rank, size).backward()
        optimizer.step()
        of_serial.zero_grad()
        loss_of_share(serial, step).backward()
        of_serial.step()
    difference = 0.0
    for mine, whole in zip(model, serial):
        flat = torch.cat([p.detach().flatten() for p in whole.parameters()])
        difference = max(difference, (mine.gather() - flat).abs().max().item())
    held = sum(p.numel() for p in model.parameters())
    total = sum(p.numel() for p in serial.parameters())
    print(f"rank {rank}: 10 steps, holds {held} of {total} parameters, {difference=:.1e}")
    dist.destroy_process_group()
    if difference > 1e-9:
        raise SystemExit("ZeRO-3 is not the serial step")


if __name__ == "__main__":
    if "RANK" not in os.environ:  # not under torchrun: become it
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    main()

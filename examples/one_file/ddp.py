"""DDP in one file: average gradients in buckets, while backward still computes.

    backward     w3   w2   w1   w0           gradients arrive, last layer first
    bucket 0     [w3   w2]-- all-reduce --.
    bucket 1               [w1   w0]-- all-reduce --.
    finish()                                         wait; p.grad is the mean; optimizer.step()

Layout: parameters, gradients and optimizer states are whole on every rank; the batch is sharded.
Wire: 2(n-1)/n of the gradients' bytes per rank and step, one all-reduce per bucket.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704.

    torchrun --nproc-per-node 2 ddp.py        or: python ddp.py, which starts two ranks
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


class DDP(nn.Module):
    """Wrap a module. After `backward()` call `finish()`: then each gradient is the ranks' mean."""

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 << 20) -> None:
        super().__init__()
        self.module = module
        self.syncs = True
        """False: gradients add up on their rank, as for the microbatches before the last one."""
        for x in (*module.parameters(), *module.buffers()):
            dist.broadcast(x.data, src=0)  # replicas begin equal
        self.buckets = make_buckets(module, bucket_bytes)
        self.num_missing = [len(bucket) for bucket in self.buckets]
        self.sent: list[tuple[Tensor, dist.Work]] = []
        for index, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self.hook(index))

    def forward(self, *args: Tensor) -> Tensor:
        """Return the module's output."""
        return self.module(*args)

    def hook(self, index: int):
        """Return a function that counts a gradient of this bucket, and sends full buckets."""

        def count(parameter: nn.Parameter) -> None:
            if self.syncs:
                self.num_missing[index] -= 1
                # In one order on every rank, whatever the order in which gradients arrive.
                while len(self.sent) < len(self.buckets) and not self.num_missing[len(self.sent)]:
                    self.send(self.buckets[len(self.sent)])

        return count

    def send(self, bucket: list[nn.Parameter]) -> None:
        """Start the all-reduce of a bucket. A parameter that the loss left out counts as zeros."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.flatten() for g in gradients]) / dist.get_world_size()
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        """Send the buckets that are left, wait for all, and set the gradients to the means."""
        for bucket in self.buckets[len(self.sent) :]:
            self.send(bucket)
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            for parameter, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                parameter.grad = mean.view_as(parameter)
        self.sent = []
        self.num_missing = [len(bucket) for bucket in self.buckets]


def make_buckets(module: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Cut the trained parameters, last first, into buckets that have just reached this size."""
    buckets: list[list[nn.Parameter]] = [[]]
    num_bytes = 0
    for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
        if num_bytes >= bucket_bytes:
            buckets.append([])
            num_bytes = 0
        buckets[-1].append(parameter)
        num_bytes += parameter.numel() * parameter.element_size()
    return buckets


def make_model() -> nn.Module:
    """Return the model, the same for each call."""
    torch.manual_seed(0)
    sizes = (5, 11, 7, 3)
    layers = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in zip(sizes, sizes[1:])]
    return nn.Sequential(*layers).double()


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """Return 7 rows, a number that 2, 3 and 4 do not divide: x (7, 5) and targets (7, 3)."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randn(7, k, generator=generator).double() for k in (5, 3))


def serial_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Train on the whole batch in one process: what DDP has to equal."""
    x, targets = batch_of(step)
    optimizer.zero_grad()
    F.mse_loss(model(x), targets).backward()
    optimizer.step()


def ddp_step(model: DDP, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Train on this rank's rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, targets = batch_of(step)
    # Ranks have 4 and 3 rows of 7: the mean over ranks needs each share weighted by its rows.
    my_x, my_targets = x.tensor_split(size)[rank], targets.tensor_split(size)[rank]
    optimizer.zero_grad()
    loss = F.mse_loss(model(my_x), my_targets, reduction="sum") / targets.numel()
    (loss * size).backward()
    model.finish()
    optimizer.step()


def main() -> None:
    """Train on all ranks and in one process, and compare."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and .to(device)
    model, serial = DDP(make_model(), bucket_bytes=600), make_model()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, serial)]
    for step in range(10):
        ddp_step(model, optimizers[0], step)
        serial_step(serial, optimizers[1], step)
    pairs = zip(model.parameters(), serial.parameters())
    difference = max((a - b).abs().max().item() for a, b in pairs)
    print(f"rank {dist.get_rank()}: 10 steps, {len(model.buckets)} buckets, {difference=:.1e}")
    dist.destroy_process_group()
    if difference > 1e-9:
        raise SystemExit("DDP is not the serial step")


if __name__ == "__main__":
    if "RANK" not in os.environ:  # not under torchrun: become it
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    main()

"""1F1B in one file: a pipeline of stages, one per rank, and a batch cut into microbatches.

    rank 0   F0 F1 F2       B0 F3    B1    B2    B3     F: take x from the rank before, send y on
    rank 1      F0 F1    B0 F2 B1 F3 B2       B3        B: take y's gradient from the rank after,
    rank 2         F0 B0 F1 B1 F2 B2 F3 B3                 send x's to the rank before

Warmup: rank r does p - 1 - r forwards. Then one forward, one backward; the last backwards drain.
So rank r keeps activations of at most p - r microbatches, however many there are. The bubble is
(p - 1) / (m + p - 1) of the step, as in GPipe, which keeps all m.

Layout: rank r holds stage r of p: some consecutive layers, their gradients and optimizer states.
Wire: per boundary and microbatch, its activations forward and their gradient backward.
Paper: Narayanan et al., PipeDream-Flush, arXiv:2006.09503, section 2.2.

    torchrun --nproc-per-node 2 one_f_one_b.py
    python one_f_one_b.py        starts two ranks
"""

import os
import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


def one_f_one_b(rank: int, num_ranks: int, num_microbatches: int) -> Iterator[tuple[str, int]]:
    """Yield one rank's operations in order, as ("F", 3) for the forward of microbatch 3."""
    warmup = min(num_ranks - 1 - rank, num_microbatches)
    for i in range(warmup):
        yield "F", i
    for i in range(warmup, num_microbatches):
        yield "F", i
        yield "B", i - warmup  # the oldest that is in flight
    for i in range(num_microbatches - warmup, num_microbatches):
        yield "B", i


def pipeline_step(
    stage: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    targets: Tensor,
    num_microbatches: int,
) -> tuple[float, int]:
    """Add the gradients of the batch's mean loss to the stage's parameters.

    stage: keeps the shape of x (B, D), so that every rank knows what it will receive. loss: the
    mean over rows. x, targets: the whole batch; the first rank uses x, the last one targets.
    Return the loss, which is 0 but on the last rank, and the most microbatches kept at once.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    xs, all_targets = x.tensor_split(num_microbatches), targets.tensor_split(num_microbatches)
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    most, total, sent = 0, 0.0, []
    for kind, i in one_f_one_b(rank, last + 1, num_microbatches):
        if kind == "F":
            x_i = xs[i]
            if rank > 0:
                x_i = torch.empty_like(x_i)
                dist.recv(x_i, rank - 1)
                x_i.requires_grad_()
            y_i = stage(x_i)
            if rank == last:  # microbatches may differ in size, so each has its own weight
                y_i = loss(y_i, all_targets[i]) * len(x_i) / len(x)
                total += y_i.item()
            else:
                sent.append(send(y_i.detach(), rank + 1))
            kept[i] = x_i, y_i
            most = max(most, len(kept))
        else:
            x_i, y_i = kept.pop(i)
            gradient = None
            if rank < last:
                gradient = torch.empty_like(y_i)
                dist.recv(gradient, rank + 1)
            y_i.backward(gradient)
            if rank > 0:
                sent.append(send(x_i.grad, rank - 1))
    for work, _ in sent:
        work.wait()
    return total, most


def send(x: Tensor, rank: int) -> tuple[dist.Work, Tensor]:
    """Start to send. A send that waits could wait for a rank that is sending to this one.

    Returns x, too: it has to live until it is sent.
    """
    return dist.isend(x.contiguous(), rank), x


class Layer(nn.Module):
    """x (B, D) -> x + an MLP of x."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next layer's features."""
        return x + self.down(F.gelu(self.up(x)))


def make_layers() -> list[Layer]:
    """Return 7 layers, the same for each call. 2, 3 and 4 ranks do not divide them."""
    torch.manual_seed(0)
    return [Layer(hidden=6, ffn=11).double() for _ in range(7)]


def stage_of(layers: list[Layer], rank: int, num_ranks: int) -> nn.Sequential:
    """Return a rank's consecutive layers; the first ranks have one more if they do not divide."""
    mine = torch.arange(len(layers)).tensor_split(num_ranks)[rank]
    return nn.Sequential(*(layers[i] for i in mine.tolist()))


def main() -> None:
    """Train on all ranks and in one process, and compare."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", .to(device), and batch_isend_irecv
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = make_layers()
    stage, serial = stage_of(make_layers(), rank, size), nn.Sequential(*layers)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (stage, serial)]
    for step in range(10):
        generator = torch.Generator().manual_seed(step)
        x, targets = torch.randn(2, 10, 6, generator=generator).double()
        optimizers[0].zero_grad()
        _, most = pipeline_step(stage, F.mse_loss, x, targets, num_microbatches=4)
        optimizers[0].step()
        optimizers[1].zero_grad()
        F.mse_loss(serial(x), targets).backward()
        optimizers[1].step()
    pairs = zip(stage.parameters(), stage_of(layers, rank, size).parameters())
    difference = max((a - b).abs().max().item() for a, b in pairs)
    print(f"rank {rank}: {len(stage)} of 7 layers, keeps {most} microbatches, {difference=:.1e}")
    dist.destroy_process_group()
    if difference > 1e-9:
        raise SystemExit("1F1B is not the serial step")


if __name__ == "__main__":
    if "RANK" not in os.environ:  # not under torchrun: become it
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    main()

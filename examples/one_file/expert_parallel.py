"""Expert parallelism in one file: tokens travel to the ranks of their experts, and back.

    rank 0   tokens a b c, for experts 1 0 1   --+-->   rank 0   expert 0 computes b | e
    rank 1   tokens d e,   for experts 1 0     --+-->   rank 1   expert 1 computes a c | d

A row is a token that goes to one of its k experts. `AllToAll` is an operation of autograd: the
gradients of rows go back the way that the rows came, by an all-to-all with the splits swapped.

Layout: each rank has its own tokens, any number of them, and E/n consecutive experts of all E. The
router is whole on every rank.
Wire: a count per expert; forward each row and its result, once each; backward as many. An expert's
gradient is complete on its rank. The router's is summed over ranks: one all-reduce.
Papers: GShard, arXiv:2006.16668; Switch Transformer, arXiv:2101.03961.

    torchrun --nproc-per-node 2 expert_parallel.py
    python expert_parallel.py        starts two ranks
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


class AllToAll(torch.autograd.Function):
    """Send the first send[0] rows to rank 0, and so on. Receive as many as `receive` says."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Return the received rows, in the order of the ranks."""
        ctx.splits = send, receive
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), receive, send)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradients of the rows that were sent: the same exchange, backwards."""
        send, receive = ctx.splits
        return AllToAll.apply(gradient, receive, send), None, None


class Expert(nn.Module):
    """x (N, D) -> (N, D), through ffn features."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed rows."""
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    """x (N, D) -> (N, D): for each token the k most probable experts' outputs, times probability.

    rank, size: experts of one rank of `size`. size 1: all of them, and nothing is sent.
    """

    def __init__(self, hidden=6, ffn=7, num_experts=5, top_k=2, rank=0, size=1) -> None:
        super().__init__()
        self.top_k, self.size = top_k, size
        self.gate = nn.Linear(hidden, num_experts, bias=False)
        experts = torch.arange(num_experts).tensor_split(size)
        self.num_of_rank = [len(each) for each in experts]
        self.experts = nn.ModuleDict({str(e): Expert(hidden, ffn) for e in experts[rank].tolist()})

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of this rank's tokens."""
        weights, chosen = self.gate(x).softmax(1).topk(self.top_k)
        # Sorted by expert, the rows for one rank lie together.
        order = chosen.flatten().argsort(stable=True)
        token = order // self.top_k
        rows = x[token]
        counts = torch.bincount(chosen.flatten(), minlength=self.gate.out_features)
        if self.size == 1:
            results = self.compute(rows, counts[None])
        else:
            # counts_here[r, e]: rows that rank r sends for this rank's e-th expert.
            num_here = len(self.experts)
            counts_here = counts.new_empty(self.size * num_here)
            dist.all_to_all_single(counts_here, counts, [num_here] * self.size, self.num_of_rank)
            counts_here = counts_here.view(self.size, num_here)
            send = [int(part.sum()) for part in counts.split(self.num_of_rank)]
            receive = counts_here.sum(1).tolist()
            here = AllToAll.apply(rows, send, receive)  # dispatch
            results = AllToAll.apply(self.compute(here, counts_here), receive, send)  # combine
        weighted = results * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, token, weighted)

    def compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply experts to rows that come by source, then by expert; counts (sources, experts)."""
        parts = list(rows.split(counts.flatten().tolist()))
        for i, expert in enumerate(self.experts.values()):
            its_parts = parts[i :: len(self.experts)]
            results = expert(torch.cat(its_parts))
            parts[i :: len(self.experts)] = results.split([len(part) for part in its_parts])
        return torch.cat(parts) if parts else rows


def step(model: MoE, optimizer: torch.optim.Optimizer, x: Tensor, targets: Tensor, n: int) -> None:
    """Train on this rank's tokens. n: the tokens of all ranks, over which the loss is a mean."""
    optimizer.zero_grad()
    ((x + model(x) - targets).square().sum() / n).backward()
    if model.size > 1:
        dist.all_reduce(model.gate.weight.grad)
    optimizer.step()


def main() -> None:
    """Train on all ranks and in one process, and compare."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and .to(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    serial = MoE().double()
    model = MoE(rank=rank, size=size).double()
    model.load_state_dict({name: serial.state_dict()[name] for name in model.state_dict()})
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, serial)]
    for number in range(10):
        generator = torch.Generator().manual_seed(number)
        x, targets = torch.randn(2, 13, 6, generator=generator).double()
        mine = (each.tensor_split(size)[rank] for each in (x, targets))
        step(model, optimizers[0], *mine, len(x))
        step(serial, optimizers[1], x, targets, len(x))
    whole = serial.state_dict()
    difference = max((p - whole[k]).abs().max().item() for k, p in model.state_dict().items())
    print(f"rank {rank}: 10 steps, experts {', '.join(model.experts)} of 5, {difference=:.1e}")
    dist.destroy_process_group()
    if difference > 1e-9:
        raise SystemExit("expert parallelism is not the serial step")


if __name__ == "__main__":
    if "RANK" not in os.environ:  # not under torchrun: become it
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    main()

"""Pipeline parallelism: torch.distributed.pipelining with the schedule 1F1B.

torchrun --nproc-per-node 2 examples/frameworks/pipelining.py --out /tmp/pipelining
"""

import torch
import torch.distributed as dist
from job import Job, Record
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main() -> None:
    """Train on this rank."""
    job = Job.from_command_line()
    dist.init_process_group("gloo", timeout=job.timeout)
    rank, size = dist.get_rank(), dist.get_world_size()
    is_first, is_last = rank == 0, rank == size - 1
    whole = job.model()
    layers = [*whole.blocks.children()]
    share = len(layers) // size
    parts = layers[rank * share : (rank + 1) * share]
    parts = [whole.embedding] * is_first + parts + [whole.norm, whole.head] * is_last
    module = nn.Sequential(*parts)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    # At least as many microbatches as stages; accumulation makes them more.
    schedule = Schedule1F1B(stage, size * job.accumulate, loss_fn=job.loss)
    optimizer = job.optimizer(module.parameters())
    record = Record(job, rank)
    for microbatches in job.batches(0, 1):
        inputs_BT, targets_BT = (torch.cat(parts) for parts in zip(*microbatches))
        losses: list[torch.Tensor] = []
        arguments = (inputs_BT,) if is_first else ()
        schedule.step(*arguments, target=targets_BT if is_last else None, losses=losses)
        if is_first or is_last:  # the embedding and the head are one matrix, in two stages
            dist.all_reduce(whole.head.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        record.step(torch.stack(losses).mean().detach() if is_last else None)
    record.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

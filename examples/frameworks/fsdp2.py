"""FSDP2: torch's fully_shard, a unit for each block.

torchrun --nproc-per-node 2 examples/frameworks/fsdp2.py --out /tmp/fsdp2
"""

import torch.distributed as dist
from job import Job, Record
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Train on this rank."""
    job = Job.from_command_line()
    dist.init_process_group("gloo", timeout=job.timeout)
    model = job.model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = job.optimizer(model.parameters())  # after fully_shard: of the shards
    record = Record(job, dist.get_rank())
    for microbatches in job.batches(dist.get_rank(), dist.get_world_size()):
        total = 0.0
        for index, (inputs_BT, targets_BT) in enumerate(microbatches, start=1):
            model.set_requires_gradient_sync(index == len(microbatches))
            loss = job.loss(model(inputs_BT), targets_BT) / len(microbatches)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        record.step(total)
    record.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Tensor parallelism: torch's parallelize_module, columns then rows in each pair of matrices.

torchrun --nproc-per-node 2 examples/frameworks/tensor_parallel.py --out /tmp/tp
"""

import torch.distributed as dist
from job import Job, Record
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def main() -> None:
    """Train on this rank."""
    job = Job.from_command_line()
    dist.init_process_group("gloo", timeout=job.timeout)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("attention.out", "mlp.down")}
    model = job.model()
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    optimizer = job.optimizer(model.parameters())
    record = Record(job, dist.get_rank())
    for microbatches in job.batches(0, 1):  # every rank takes the whole batch
        total = 0.0
        for inputs_BT, targets_BT in microbatches:
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

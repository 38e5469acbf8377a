"""Monarch: one controller calls all ranks as a mesh of actors; torch's DDP trains in them.

python examples/frameworks/monarch_actors.py --out /tmp/monarch
"""

from contextlib import nullcontext

import torch.distributed as dist
from job import Job, Record
from monarch.actor import Actor, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer(Actor):
    """One rank."""

    @endpoint
    def train(self, job: Job) -> None:
        """Train on one rank."""
        dist.init_process_group("gloo", timeout=job.timeout)
        rank, size = dist.get_rank(), dist.get_world_size()
        model = DDP(job.model())
        optimizer = job.optimizer(model.parameters())
        record = Record(job, rank)
        for microbatches in job.batches(rank, size):
            total = 0.0
            for index, (inputs_BT, targets_BT) in enumerate(microbatches, start=1):
                with nullcontext() if index == len(microbatches) else model.no_sync():
                    loss = job.loss(model(inputs_BT), targets_BT) / len(microbatches)
                    loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            record.step(total)
        record.save()
        dist.destroy_process_group()


def main() -> None:
    """Start two ranks, and call them."""
    job = Job.from_command_line()
    processes = this_host().spawn_procs({"ranks": 2})
    setup_torch_elastic_env(processes)
    trainers = processes.spawn("trainers", Trainer)
    trainers.train.call(job).get()
    processes.stop().get()


if __name__ == "__main__":
    main()

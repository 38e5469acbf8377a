"""Ray Train: Ray places the workers, and torch's DDP trains in them.

python examples/frameworks/ray_train.py --out /tmp/ray
"""

from contextlib import nullcontext
from pathlib import Path

import ray
import torch.distributed as dist
from job import Job, Record
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train(settings: dict[str, Job]) -> None:
    """Train on one worker."""
    job = settings["job"]
    rank, size = dist.get_rank(), dist.get_world_size()
    model = prepare_model(job.model())
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


def main() -> None:
    """Start two workers, and wait for them."""
    job = Job.from_command_line()
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"job": job},
        torch_config=TorchConfig("gloo", timeout_s=int(job.timeout_s)),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            storage_path=str(Path(job.out).resolve()), failure_config=FailureConfig(max_failures=0)
        ),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()

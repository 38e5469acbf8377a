"""Lightning Fabric: `setup` wraps the model in DDP; the loop stays yours.

torchrun --nproc-per-node 2 examples/frameworks/fabric_ddp.py --out /tmp/fabric
"""

from job import Job, Record
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy


def main() -> None:
    """Train on this rank."""
    job = Job.from_command_line()
    strategy = DDPStrategy(process_group_backend="gloo", timeout=job.timeout)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    model = job.model()
    model, optimizer = fabric.setup(model, job.optimizer(model.parameters()))
    record = Record(job, fabric.global_rank)
    for microbatches in job.batches(fabric.global_rank, fabric.world_size):
        total = 0.0
        for index, (inputs_BT, targets_BT) in enumerate(microbatches, start=1):
            with fabric.no_backward_sync(model, enabled=index < len(microbatches)):
                loss = job.loss(model(inputs_BT), targets_BT) / len(microbatches)
                fabric.backward(loss)
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        record.step(total)
    record.save()


if __name__ == "__main__":
    main()

"""Accelerate: `prepare` wraps the model in DDP, `accumulate` leaves the all-reduce out.

torchrun --nproc-per-node 2 examples/frameworks/accelerate_ddp.py --out /tmp/accelerate
"""

from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from job import Job, Record


def main() -> None:
    """Train on this rank."""
    job = Job.from_command_line()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=job.accumulate,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=job.timeout)],
    )
    model = job.model()
    model, optimizer = accelerator.prepare(model, job.optimizer(model.parameters()))
    record = Record(job, accelerator.process_index)
    for microbatches in job.batches(accelerator.process_index, accelerator.num_processes):
        total = 0.0
        for inputs_BT, targets_BT in microbatches:
            with accelerator.accumulate(model):
                loss = job.loss(model(inputs_BT), targets_BT)
                accelerator.backward(loss)  # divides by the number of microbatches
                optimizer.step()  # does nothing before the last one
                optimizer.zero_grad()
            total += loss.item() / len(microbatches)
        record.step(total)
    record.save()
    accelerator.end_training()


if __name__ == "__main__":
    main()

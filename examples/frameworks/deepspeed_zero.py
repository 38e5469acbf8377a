"""DeepSpeed: the engine, with ZeRO of the stage that is asked for.

torchrun --nproc-per-node 2 examples/frameworks/deepspeed_zero.py --out /tmp/zero --zero-stage 3
"""

import deepspeed
import torch.distributed as dist
from job import SEQUENCES_PER_STEP, Job, Record


def main() -> None:
    """Train on this rank."""
    job = Job.from_command_line()
    deepspeed.init_distributed("gloo", timeout=job.timeout)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = job.model()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=job.optimizer(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": SEQUENCES_PER_STEP // size // job.accumulate,
            "gradient_accumulation_steps": job.accumulate,
            "zero_optimization": {"stage": job.zero_stage},
            "gradient_clipping": 0.0,  # no clipping; the default of 0.19.8 is 1.0
            "zero_allow_untested_optimizer": True,  # SGD
        },
    )
    record = Record(job, rank)
    for microbatches in job.batches(rank, size):
        total = 0.0
        for inputs_BT, targets_BT in microbatches:
            loss = job.loss(engine(inputs_BT), targets_BT)
            engine.backward(loss)  # divides by the number of microbatches
            engine.step()  # steps after the last one
            total += loss.item() / len(microbatches)
        record.step(total)
    record.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

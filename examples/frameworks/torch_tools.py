"""A hang for torch's own tools: rank 1 sleeps, rank 0 waits for it in an all-reduce.

    torchrun --nproc-per-node 2 examples/frameworks/torch_tools.py --out /tmp/tools --fault hangs

debug server            a web page of rank 0: the stacks and the Flight Recorder of all ranks
Flight Recorder         the last collectives of each rank; `torchfrtrace <folder>` compares them
                        torch writes this file itself only with NCCL: with gloo, labkit does
"""

import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from job import FAULT_STEP, Job, Record

from labkit.comm import recorder

DUMP_AFTER_S = 2.0


def main() -> None:
    """Reduce until one rank hangs; two seconds later each rank writes its dump."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "100")
    job = Job.from_command_line()
    dist.init_process_group("gloo", timeout=job.timeout)
    rank = dist.get_rank()
    try:
        from torch.distributed.debug import start_debug_server

        start_debug_server(port=int(os.environ["DEBUG_PORT"]))
    except ImportError as error:  # aiohttp
        Path(job.out, f"no-debug-server-{rank}").write_text(error.name or str(error))
    record = Record(job, rank)
    for _ in range(FAULT_STEP + 1):
        total = torch.ones(2)
        if len(record.losses) == FAULT_STEP - 1:
            dump = threading.Timer(DUMP_AFTER_S, recorder.dump, [f"{job.out}/dumps/rank_"])
            dump.daemon = True
            dump.start()
        dist.all_reduce(total)
        record.step(total[0])


if __name__ == "__main__":
    main()

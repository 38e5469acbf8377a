"""Run torch's own four files one after the other in one launch, which starts faster than four.

torchrun --nproc-per-node 2 examples/frameworks/torchs_own.py --out /tmp/own --accumulate 2
"""

import os
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("ddp", "fsdp2", "tensor_parallel", "pipelining")


def main() -> None:
    """Train with each file, and keep its record in a folder of its name."""
    options = sys.argv[1:]
    out = options.index("--out") + 1
    folder = Path(options[out])
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # its keys serve one process group only
    for name in FILES:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        options[out] = str(folder / name)
        Path(options[out]).mkdir(exist_ok=True)
        sys.argv = [name, *options]
        runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main()

"""Neighbours of distributed training: their exact facts and their measures, from one command.

    python examples/neighbours.py            every program below, one after the other
    python examples/neighbours.py --quick    less of each: under 50 s
    python examples/neighbours.py trees      some of them

    trees        boosted trees over ranks equal one process; beside xgboost's hist
    adapters     LoRA under DDP, ZeRO-3 and tensor parallelism; beside peft
    compiler     collectives before and after a pass over the graph; beside eager FSDP
    unequal      shares by measured speed beside equal ones
    feeding      shards, shuffling and resuming: each sample once
    frameworks   the same job with torch's own tools, DeepSpeed, Accelerate, Lightning, Ray, Monarch
    one file     six techniques in one file each, equal to one process

Exits with 1 where an exact fact is not so. Times are printed with their spread, and decide nothing.
What needs a package that is missing says "not run".
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "trees": ["benchmarks/trees.py"],
    "adapters": ["benchmarks/lora.py"],
    "compiler": ["benchmarks/compiler.py"],
    "unequal": ["benchmarks/unequal.py"],
    "feeding": ["benchmarks/feeding.py"],
    "frameworks": ["examples/frameworks/compare.py"],
    "one file": [
        f"examples/one_file/{name}.py"
        for name in ("ddp", "zero3", "tensor_parallel", "one_f_one_b", "expert_parallel", "grpo")
    ],
}
"""Each takes --quick but those of one file, which take seconds."""


def main() -> int:
    """Run the programs; 1 if one of them says that a fact is not so."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="*", help=f"some of {', '.join(PROGRAMS)}")
    parser.add_argument("--quick", action="store_true", help="less of each")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.what) - set(PROGRAMS)):
        parser.error(f"{', '.join(unknown)}: choose among {', '.join(PROGRAMS)}")
    failed = []
    for name in chosen.what or PROGRAMS:
        print(f"\n=== {name}", flush=True)
        quick = ["--quick"] if chosen.quick and name != "one file" else []
        for program in PROGRAMS[name]:
            if subprocess.run([sys.executable, ROOT / program, *quick]).returncode:
                failed.append(program)
    print(f"\nNOT so: {', '.join(failed)}" if failed else "\nAll exact facts are so.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The same job in nine frameworks: lines, times, losses, and what each says about a fault.

    python examples/frameworks/compare.py             all that are installed, about 15 minutes
    python examples/frameworks/compare.py --quick     torch's own only
    python examples/frameworks/compare.py DDP Ray     some

Each framework trains labkit's GPT on the same batches on two CPU ranks over gloo (job.py), with one
and with two microbatches in a step. The losses of each step are compared with those of one process.
Then rank 1 dies (SIGKILL), hangs, or hands another shape to an all-reduce. The process group has a
timeout of 8 s. The table has the first error line in the output, and the seconds from the fault
until that line.

The exit status is 1 if a loss of torch's own is not equal. In another framework a difference is a
finding, and the table shows it. Times decide nothing. The frameworks are in the extra `frameworks`.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from job import FAULTS, Job

HERE = Path(__file__).parent
TOLERANCE = 2e-5  # losses are near 4, in float32, and sums have another order
GROUP_TIMEOUT_S, LIMIT_S, HEALTHY_LIMIT_S = 8.0, 30.0, 150.0
NUM_WARM_UP = 2
ERROR = re.compile(r"^.*?\b((?:\w+Error|\w*Exception|Signal \d+ \(\w+\)|exitcode +: -?\d+)\b.*)")
SKIPPED = re.compile(r"ChildFailedError|SignalException|raise |except |warn|\.py:\d+: DeprecationW")
NOISE = re.compile(r"\[/\S+\] | \[[\d.]+\]:\d+|\(pid: \d+\) |This is typically.*|\x1b\[\d*m")
MARK = "LABKIT_FRAMEWORKS_RUN"


@dataclass(frozen=True)
class Framework:
    """A file of this folder, and how it is started. `needs`: a module; "": torch only."""

    name: str
    file: str
    needs: str = ""
    options: tuple[str, ...] = ()
    by_torchrun: bool = True

    @property
    def lines(self) -> int:
        """Lines of code, without empty ones, comments and the docstring."""
        source = (HERE / self.file).read_text()
        body = source.split('"""', 2)[2].splitlines()
        return sum(1 for line in body if line.strip() and not line.strip().startswith("#"))


FRAMEWORKS = (
    Framework("DDP", "ddp.py"),
    Framework("FSDP2", "fsdp2.py"),
    Framework("tensor parallel", "tensor_parallel.py"),
    Framework("pipelining", "pipelining.py"),
    *(
        Framework(f"ZeRO-{n}", "deepspeed_zero.py", "deepspeed", ("--zero-stage", f"{n}"))
        for n in range(4)
    ),
    Framework("Accelerate", "accelerate_ddp.py", "accelerate"),
    Framework("Fabric", "fabric_ddp.py", "lightning_fabric"),
    Framework("Ray", "ray_train.py", "ray", by_torchrun=False),
    Framework("Monarch", "monarch_actors.py", "monarch", by_torchrun=False),
)


@dataclass
class Outcome:
    """One run. Seconds of a failure are counted from the fault."""

    returncode: int | None  # None: ended at the limit
    first_step_s: float = float("nan")
    steps_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    said: str = ""
    said_s: float = float("nan")
    ended_s: float = float("nan")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a run: files here can be imported, and it can be found again."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # ninja
    paths = {"PATH": programs, "PYTHONPATH": path}
    return {**os.environ, **ray, **quiet, **paths, MARK: str(os.getpid()), **more}


def start(framework: Framework, job: Job, **more: str) -> subprocess.Popen[bytes]:
    """Start a run. Its output goes to the file `log` in the job's folder."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    launcher += ["--nproc-per-node", "2"]
    command = [sys.executable, *launcher * framework.by_torchrun, str(HERE / framework.file)]
    command += ["--out", job.out, "--accumulate", str(job.accumulate), "--fault", job.fault]
    command += ["--timeout-s", str(job.timeout_s), *framework.options]
    with Path(job.out, "log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(**more),
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run and all that it started, in sessions of their own too."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for folder in Path("/proc").glob("[0-9]*"):  # Linux; elsewhere the session was all
        with contextlib.suppress(OSError):
            is_ours = f"{MARK}={os.getpid()}".encode() in (folder / "environ").read_bytes()
            if is_ours and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)


def errors(log: Path) -> list[str]:
    """Return the distinct error lines of the output so far."""
    lines = log.read_text(errors="replace").splitlines()
    found = [ERROR.match(line) for line in lines if not SKIPPED.search(line)]
    return list(dict.fromkeys(NOISE.sub("", match[1]).strip() for match in found if match))


def run(framework: Framework, job: Job, folders: Sequence[str] = ("",)) -> list[Outcome]:
    """Run one job until it ends, or to the limit. An outcome for each folder with a record."""
    with tempfile.TemporaryDirectory(prefix="frameworks-", ignore_cleanup_errors=True) as out:
        job = replace(job, out=out)
        log, fault = Path(out, "log"), Path(out, "fault")
        began_s, fault_s, said_s, before = time.time(), None, float("nan"), []
        process = start(framework, job)
        try:
            while process.poll() is None:
                time.sleep(0.05)
                if fault_s is None and fault.exists() and (text := fault.read_text()):
                    fault_s = float(text)
                if fault_s is None:
                    before = errors(log)  # a warning of the start
                elif said_s != said_s and len(errors(log)) > len(before):
                    said_s = time.time()
                limit_s = fault_s + LIMIT_S if fault_s else began_s + HEALTHY_LIMIT_S
                if time.time() > limit_s:
                    break
            outcome = Outcome(process.poll())
            ended_s = time.time()
        finally:
            end(process)
        said = errors(log)[len(before) if fault_s else 0 :]
        outcome.said = " / ".join(said[:2] + said[2:][-1:]) or last_line(log)
        if fault_s:
            outcome.ended_s = ended_s - fault_s
            outcome.said_s = (said_s if said_s == said_s else ended_s) - fault_s
        return [read(replace(outcome), Path(out, folder), began_s) for folder in folders]


def read(outcome: Outcome, folder: Path, began_s: float) -> Outcome:
    """Add what both ranks wrote down: the mean of their losses, the later of their times."""
    records = [json.loads(each.read_text()) for each in sorted(folder.glob("rank-*.json"))]
    if len(records) == 2:
        ended = [max(both) for both in zip(*(each["ended_s"] for each in records))]
        outcome.first_step_s = ended[0] - began_s
        outcome.steps_s = [b - a for a, b in zip(ended, ended[1:])][NUM_WARM_UP:]
        pairs = zip(*(each["losses"] for each in records))
        outcome.losses = [statistics.fmean(x for x in pair if x is not None) for pair in pairs]
    return outcome


def last_line(log: Path) -> str:
    """Return the last line of the output; "nothing" if there is none."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing"


def difference(outcome: Outcome, oracle: list[float]) -> float:
    """Return the largest difference of a loss from the oracle's; infinite without all losses."""
    if len(outcome.losses) != len(oracle):
        return float("inf")
    return max(abs(a - b) for a, b in zip(outcome.losses, oracle))


def row(framework: Framework, outcomes: Sequence[Outcome], oracle: list[float]) -> bool:
    """Print a framework's row. Return False if a loss that must be equal is not."""
    steps_ms = sorted(1e3 * each for each in outcomes[0].steps_s) or [float("nan")]
    first_step = " ".join(f"{each.first_step_s:.1f}" for each in outcomes).replace("nan", "-")
    step = f"{statistics.median(steps_ms):.0f} ({steps_ms[0]:.0f} to {steps_ms[-1]:.0f})"
    words, are_equal = [], True
    for outcome in outcomes:
        off = difference(outcome, oracle)
        are_equal &= off <= TOLERANCE
        unequal = f"differs by {off:.2g}" if off < float("inf") else f"no result: {outcome.said}"
        words.append("equal" if off <= TOLERANCE else unequal[:400])
    cells = [framework.name, str(framework.lines), first_step, step, *words]
    print(f"| {' | '.join(cells)} |", flush=True)
    return are_equal or framework.needs != ""


def show_faults(framework: Framework, faults: tuple[str, ...]) -> None:
    """Print what a framework says of each fault."""
    for fault in faults:
        (outcome,) = run(framework, Job("", fault=fault, timeout_s=GROUP_TIMEOUT_S))
        if outcome.said_s != outcome.said_s:
            seconds = "the fault was not reached"
        elif outcome.returncode is None:
            seconds = f"not ended in {LIMIT_S:.0f} s"
        else:
            seconds = f"{outcome.said_s:.1f}, ended {outcome.ended_s:.1f}"
        text = outcome.said.replace("|", "/")[:300]
        print(f"| {framework.name} | {fault} | {seconds} | {text} |", flush=True)


def show_tools() -> None:
    """Print what torch's own tools say of a hang: rank 1 sleeps in an all-reduce of both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tools = Framework("torch's tools", "torch_tools.py")
    with tempfile.TemporaryDirectory(prefix="frameworks-", ignore_cleanup_errors=True) as out:
        job = Job(out, fault="hangs", timeout_s=HEALTHY_LIMIT_S)
        process = start(tools, job, DEBUG_PORT=str(port), TORCH_FR_BUFFER_SIZE="100")
        try:
            dumps = [Path(out, "dumps", f"rank_{rank}") for rank in range(2)]
            until_s = time.time() + HEALTHY_LIMIT_S
            while not all(dump.exists() for dump in dumps) and time.time() < until_s:
                time.sleep(0.1)
            time.sleep(0.5)  # the files are written
            missing = Path(out, "no-debug-server-0")
            if missing.exists():
                print(f"| debug server | not run: pip install {missing.read_text()} |")
            else:
                for page in ("stacks", "fr_trace"):
                    address = f"http://localhost:{port}/{page}"
                    try:
                        words = in_words(urllib.request.urlopen(address, timeout=20).read())
                    except urllib.error.HTTPError as error:
                        words = f"HTTP {error.code}: {error.reason}"
                    print(f"| debug server, /{page} | {words} |")
            print(f"| Flight Recorder's analyzer | {analyze(Path(out))} |")
        finally:
            end(process)
    print(f"| LocalTensor, another shape | {local_tensor(of_another_shape=True)} |")
    print(
        f"| LocalTensor, only rank 0 calls | {local_tensor(of_another_shape=False)} |", flush=True
    )


def in_words(html: bytes) -> str:
    """Return the lines of a page of the debug server that name our files or a collective."""
    text = re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", html.decode(), flags=re.S)
    kept = [
        line.strip()
        for line in text.splitlines()
        if re.search(r"torch_tools\.py|job\.py|gloo:|[Rr]ank ?\d|rror|[Mm]issing", line)
    ]
    return " / ".join(dict.fromkeys(kept))[:600] or "nothing"


def analyze(out: Path) -> str:
    """Return what `torchfrtrace` prints about the dumps of both ranks."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    done = subprocess.run(
        [*command, str(out / "dumps")], capture_output=True, text=True, env=environment()
    )
    lines = (done.stdout + done.stderr).splitlines()
    kept = [line.strip() for line in lines if re.search(r"[Mm]issing|joined|rror|gloo:", line)]
    return " / ".join(kept)[:600].replace("|", "/") or "nothing"


def local_tensor(of_another_shape: bool) -> str:
    """Return what LocalTensor says: it runs two ranks in this process, without communication."""
    from torch.distributed._local_tensor import LocalTensorMode

    dist.init_process_group("fake", rank=0, world_size=2)
    try:
        with LocalTensorMode(2) as mode:
            x = mode.rank_map(lambda rank: torch.ones(2 + rank * of_another_shape))
            if of_another_shape or dist.get_rank() == 0:  # get_rank() is 0 for both
                dist.all_reduce(x)
        return "no error: both ranks called"
    except RuntimeError as error:
        return f"at once: {error}"
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("framework", nargs="*", help="some; else all")
    parser.add_argument("--quick", action="store_true", help="torch's own, and one fault")
    parser.add_argument("--no-faults", action="store_true", help="healthy runs only")
    options = parser.parse_args()
    names = [each.name for each in FRAMEWORKS]
    if unknown := set(options.framework) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: choose among {', '.join(names)}")
    chosen = [f for f in FRAMEWORKS if not options.framework or f.name in options.framework]
    if options.quick:
        chosen = [each for each in chosen if not each.needs]
    present = [f for f in chosen if not f.needs or importlib.util.find_spec(f.needs)]
    accumulations = (2,) if options.quick else (1, 2)
    oracle = Job("").oracle()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
    heads = " | ".join(f"{n} microbatch{'es' * (n > 1)}" for n in accumulations)
    print(f"\n| | lines | s to first step | ms per step | {heads} |")
    print(f"|---|---|---|---|{'---|' * len(accumulations)}", flush=True)
    if options.quick:  # one launch for all: its start is not that of each
        own = Framework("torch's own", "torchs_own.py")
        found = run(own, Job("", accumulate=2), [Path(each.file).stem for each in present])
        for outcome in found:
            outcome.first_step_s = float("nan")
        equal = [row(each, [outcome], oracle) for each, outcome in zip(present, found)]
    else:
        equal = []
        for each in present:
            outcomes = [run(each, Job("", accumulate=n))[0] for n in accumulations]
            equal.append(row(each, outcomes, oracle))
    for each in chosen:
        if each not in present:
            print(f"| {each.name} | {each.lines} | not run: pip install 'labkit[frameworks]' |")
    if not options.no_faults:
        print(
            "\n| | rank 1 | seconds until it is reported | first error lines |\n|---|---|---|---|"
        )
        for each in present[:1] if options.quick else {f.file: f for f in present}.values():
            show_faults(each, FAULTS[:1] if options.quick else FAULTS)
    if not options.quick and not options.framework:
        print("\n| torch's own tools: rank 1 hangs | they say |\n|---|---|", flush=True)
        show_tools()
    if not all(equal):
        sys.exit("a loss of torch's own differs from the oracle's")


if __name__ == "__main__":
    main()

r"""One rank of a job on several hosts, started by torchrun on each of them:

    torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id=first --rdzv-backend=c10d \
        --rdzv-endpoint=HOST:29500 -m labkit.launch.payload train.py --out runs/first

FILE is train.py (its function `main(world)`), train.py:function, or what `labkit.save_payload`
wrote. The folder of --out holds the Run afterwards: `Run.load("runs/first")`. It is for one job: a
restart, and a later start with the same --rdzv-id, count on in it; another job is refused.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch

from labkit.comm.operation import ranks_named
from labkit.hosts.attempts import attempt_message, attempts, claim, folder_of, objection
from labkit.hosts.attend import Attendant
from labkit.hosts.board import open_store
from labkit.hosts.environment import Environment, name_of_job
from labkit.hosts.hosted_rank import HostedSpec, LivenessPort
from labkit.hosts.rendezvous import Rendezvous, join
from labkit.launch.payload import RunDirectory
from labkit.launch.rank import end_with_parent
from labkit.launch.request import LONGEST_TIMEOUT_S, checked_timeout
from labkit.launch.run import remember_attempt

# Before the first name is looked up: a slow resolver stalls each connection for seconds.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# When a host is lost, its verdict is what counts, and not C++ frames about a broken socket.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Counting GPUs must not start CUDA here: the rank is forked from this process.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

_RENDEZVOUS_S = 120.0
_SAID_WITHIN_S = 10.0


def main() -> int:
    """Be the rank that the environment says; the exit code."""
    started_s = time.monotonic()
    end_with_parent()
    # torchrun ends its workers so: then leave by way of `finally`, and take the rank along.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = _options()
    environment = Environment.read()
    out = Path(options.out or _default_out(environment)).absolute()
    _require(out, options.device, environment)
    liveness_port = LivenessPort()
    scratch = RunDirectory() if environment.local_rank == 0 else None
    try:
        store = open_store(environment, _RENDEZVOUS_S)
        job = name_of_job(environment, store)
        rendezvous, board = join(
            environment,
            store,
            liveness_port=liveness_port.port,
            folder=str(scratch.path) if scratch else "",
            next_attempt=max(attempts(out), default=-1) + 1,
            objection=objection(out, job),
            num_gpus=torch.cuda.device_count(),
            timeout_s=_RENDEZVOUS_S,
        )
        shown = options.out or _default_out(environment)
        if environment.rank == 0 and (
            words := attempt_message(rendezvous.attempt, out, shown, job)
        ):
            print(words, flush=True)
        claim(out, job)
        remember_attempt(rendezvous.attempt)
        spec = HostedSpec(
            rank=environment.rank,
            world_size=environment.world_size,
            device=options.device or ("cuda" if rendezvous.has_gpus() else "cpu"),
            directory=RunDirectory.at(rendezvous.folder(environment)),
            timeout_s=options.timeout,
            environment=environment,
            rendezvous=rendezvous,
            file=options.file,
            arguments=options.arguments,
            liveness_port=liveness_port,
        )
        folder = folder_of(out, rendezvous.attempt)
        code = Attendant(spec, board, folder, started_s, options.stall).attend()
        if code == 0 and environment.local_rank == 0:
            print(f"labkit: {_kept(shown, environment, rendezvous)}", flush=True)
        return code
    finally:
        if scratch is not None:
            scratch.remove()


def _options() -> argparse.Namespace:
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = _Parser(
        prog="torchrun ... -m labkit.launch.payload",
        epilog="Arguments after -- are sys.argv[1:] of the Python file.",
    )
    parser.add_argument("file", metavar="FILE", help="train.py, train.py:function, or a payload")
    parser.add_argument("--out", help="folder of the Run; by default labkit-run-<the --rdzv-id>")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=600,
        help="seconds that one operation may take (600)",
    )
    parser.add_argument(
        "--stall",
        type=_seconds_or_never,
        default=5.0,
        help="seconds without progress after which the doctor is asked why (5), or never",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda where each rank has a GPU")
    options, unknown = parser.parse_known_args(words[:cut])
    if unknown:
        parser.error(
            f"{' '.join(unknown)}: no option of labkit's. What belongs to FILE comes after --"
        )
    options.arguments = words[cut + 1 :]
    return options


class _Parser(argparse.ArgumentParser):
    """Its errors are printed once per host, since all ranks of a host would print the same."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, with the usage, and exit."""
        _let_the_first_speak()
        super().error(message)


def _let_the_first_speak() -> None:
    """Before saying what all ranks of a host would: torchrun ends them as soon as one exits."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(_SAID_WITHIN_S)


def _seconds(text: str) -> float:
    try:
        return checked_timeout(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text}: give a number of seconds above 0, at most {LONGEST_TIMEOUT_S}"
        ) from None


def _seconds_or_never(text: str) -> float | None:
    return None if text == "never" else _seconds(text)


def _require(out: Path, device: str | None, environment: Environment) -> None:
    """Raise RuntimeError, before anything runs, for what could only fail afterwards."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _let_the_first_speak()
        raise RuntimeError(
            f"--out {out}: no folder can be made there ({error}); name another one"
        ) from None
    num_gpus, num_ranks = torch.cuda.device_count(), len(environment.local_ranks)
    if device == "cuda" and num_gpus < num_ranks:
        _let_the_first_speak()
        raise RuntimeError(
            f"--device cuda: this host has {num_ranks} ranks and {num_gpus} GPUs, and each rank "
            "needs one; choose --device cpu, a smaller --nproc-per-node, or leave --device out"
        )


def _kept(shown: str, environment: Environment, rendezvous: Rendezvous) -> str:
    """Where a good run can be opened, or what of it is on this host."""
    if environment.host_number == rendezvous.places[0].host_number:
        return f'kept in {shown}; Run.load("{shown}") opens it'
    ranks, host = ranks_named(environment.local_ranks), rendezvous.places[0].host
    return f"{ranks} kept in {shown} too; Run.load opens that of host {host}, which has all ranks"


def _default_out(environment: Environment) -> str:
    return f"labkit-run-{environment.run_id}"


def main_of_a_process() -> NoReturn:
    """Be the rank, say what went wrong, and exit."""
    try:
        code = main()
    except RuntimeError as error:  # not under torchrun, or ranks that have not come
        print(f"labkit: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:  # torchrun passes Ctrl-C on, and says so itself
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for a lost store must not hold the process

"""Grader of torch_ddp_script: torchrun starts the script on two ranks, to epoch 2 and then to 3.

    check -> one process: launch_twice -> python -m torch.distributed.run -> `attend` on two ranks,
             which loads the learner's file and calls its main(epochs, folder)

Observed is what a colleague could observe: the files, the losses, which rank saves, the collectives
in torch's Flight Recorder. Dropout is recorded and switched off, so that losses are exact. Weights
and losses of a mistake come from `train`, which trains both ranks in one process.
"""

import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from labkit.comm import Group
from labkit.grade.grader import Case, Mistake, Questions, close, patch

EPOCHS, RANKS, TIMEOUT_S = (2, 3), 2, 60.0
SEED, BATCH, ACCUMULATE, MAX_NORM = 7, 2, 2, 3.3
NUM_SAMPLES, NUM_PARAMETERS = 16, 6 * 8 + 8 + 8 + 1
PACKAGE = Path(__file__).parents[4]


def launch_twice(watch, args):
    """Return what was observed of a run to epoch 2, and of another that resumes to epoch 3."""
    observed = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "code").write_bytes(pickle.dumps(watch.code))
        for epochs in EPOCHS:
            observed.append(launch(epochs, folder))
            if not is_same(observed, launches()[: len(observed)], None):
                break
    return observed


def launch(epochs, folder):
    """Start torchrun; return what was observed. Raises RuntimeError with a rank's last line."""
    path = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
    # Linear layers of this size are exact with any number of threads; one starts faster.
    more = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(RANKS)]
    log = Path(folder, "log")
    records = [Path(folder, f"rank-{rank}.json") for rank in range(RANKS)]
    for record in records:
        record.unlink(missing_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "-m", __name__, str(epochs), folder],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **more, "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )
    try:
        code = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"the ranks did not end in {TIMEOUT_S:.0f} s: each collective needs all ranks"
        ) from None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # torchrun ends its ranks, which have sessions
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
    if code and not all(record.exists() for record in records):
        errors = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
        raise RuntimeError(f"under torchrun: {(errors or ['no traceback'])[0]}")
    ranks = [json.loads(record.read_text()) for record in records]
    checkpoint = Path(folder, "checkpoint.pt")
    losses = Path(folder, "losses.json")
    state = torch.load(checkpoint) if checkpoint.exists() else {}
    weights = state.get("model", {})
    steps = (epochs - (0 if epochs == EPOCHS[0] else EPOCHS[0])) * steps_per_epoch()
    return {
        "losses": json.loads(losses.read_text()) if losses.exists() else [],
        "weights": {name: x.tolist() for name, x in weights.items()},
        "finished epochs": state.get("epoch"),
        "ranks that save": [rank for rank, seen in enumerate(ranks) if seen["saved"]],
        "saves under the last name": any(
            Path(each).resolve() == checkpoint.resolve() for seen in ranks for each in seen["saved"]
        ),
        "dropout masks differ": len({seen["masks"] for seen in ranks}) == RANKS,
        "gradients sent per step": round(ranks[0]["reduced"] / (steps * NUM_PARAMETERS)),
        "group left open": any(seen["is open"] for seen in ranks),
    }


def attend(epochs, folder):
    """Call the learner's main on this rank, and write down what it did."""
    saved, masks = [], []
    save = torch.save

    def watched_save(state, file, *args, **options):
        is_path = isinstance(file, str | os.PathLike)
        saved.append(str(file if is_path else getattr(file, "name", "")))
        return save(state, file, *args, **options)

    def watched_dropout(x, p=0.5, training=True, inplace=False):
        if training:
            masks.append(zlib.crc32(torch.get_rng_state().numpy().tobytes()))
        return x

    torch.save, nn.functional.dropout = watched_save, watched_dropout
    code = pickle.loads(Path(folder, "code").read_bytes())
    code.load("main")(epochs, folder)
    seen = {"saved": saved, "masks": masks[0] if masks else None, "reduced": reduced_elements()}
    try:
        world = Group.default()
    except RuntimeError:  # the group was left
        world = None
    seen["is open"] = world is not None
    rank = int(os.environ["RANK"])
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(seen))
    if world is not None:
        world.barrier()


def reduced_elements():
    """Return how many elements this rank handed to collectives, from torch's Flight Recorder."""
    from torch._C._distributed_c10d import _dump_fr_trace

    entries = pickle.loads(_dump_fr_trace()).get("entries", [])
    return sum(
        torch.Size(size).numel()
        for each in entries
        if "all_reduce" in each["profiling_name"]
        for size in each["input_sizes"]
    )


def steps_per_epoch(ranks=RANKS):
    """Optimizer steps of an epoch."""
    return NUM_SAMPLES // (ranks * BATCH * ACCUMULATE)


@functools.cache
def launches(resumed=True, **mistake):
    """Return the right observations of both launches, or those of a mistake of `train`."""
    losses, weights = train(EPOCHS[-1], **mistake)
    by_epoch = [train(epochs, **mistake)[1] for epochs in EPOCHS[:-1]] + [weights]
    firsts = [0, *EPOCHS]
    if not resumed:
        by_epoch[-1] = train(EPOCHS[-1], forgets_momentum_at=EPOCHS[0])[1]
        losses = losses[: EPOCHS[0]] + train(EPOCHS[-1], forgets_momentum_at=EPOCHS[0])[0][-1:]
    return [
        {
            "losses": losses[first:epochs],
            "weights": weights,
            "finished epochs": epochs,
            "ranks that save": [0],
            "saves under the last name": False,
            "dropout masks differ": True,
            "gradients sent per step": 1,
            "group left open": False,
        }
        for first, epochs, weights in zip(firsts, EPOCHS, by_epoch, strict=False)
    ]


def train(
    epochs,
    *,
    reshuffled=True,
    sampled=True,
    clipped=True,
    divided=True,
    logged=RANKS,
    forgets_momentum_at=None,
):
    """Train both ranks in one process; return the loss of each epoch, and the weights by name.

    Each option is a mistake: the order of epoch 0 in all epochs, all samples on each rank, no
    clipping, sums over microbatches, the losses of rank 0 alone, new momentum in that epoch.
    """
    draw = torch.Generator().manual_seed(SEED)
    x_ND = torch.randn(NUM_SAMPLES, 6, generator=draw)
    y_N1 = x_ND.prod(1, keepdim=True) + x_ND.sum(1, keepdim=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    means = []
    for epoch in range(epochs):
        if epoch == forgets_momentum_at:
            optimizer.state.clear()
        orders = []
        for rank in range(RANKS):
            sampler = DistributedSampler(x_ND, RANKS, rank, seed=SEED)
            sampler.set_epoch(epoch * reshuffled)
            orders.append(torch.tensor([*sampler] if sampled else range(NUM_SAMPLES)).split(BATCH))
        losses = []
        for index, batches in enumerate(zip(*orders, strict=True), start=1):
            parts = [nn.functional.mse_loss(model(x_ND[b]), y_N1[b]) for b in batches]
            (sum(parts) / RANKS / (ACCUMULATE if divided else 1)).backward()
            losses += [part.item() for part in parts[:logged]]
            if index % ACCUMULATE == 0:
                if clipped:
                    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        means.append(sum(losses) / len(losses))
    return means, {name: x.tolist() for name, x in model.state_dict().items()}


def is_same(got, right, case):
    """Compare numbers up to float32's rounding, and the rest exactly."""
    if isinstance(right, dict):
        same_keys = isinstance(got, dict) and got.keys() == right.keys()
        return same_keys and all(is_same(got[key], right[key], case) for key in right)
    if isinstance(right, list):
        same_length = isinstance(got, list) and len(got) == len(right)
        return same_length and all(is_same(a, b, case) for a, b in zip(got, right, strict=True))
    if isinstance(right, float):
        return isinstance(got, float) and abs(got - right) <= 1e-4 * max(1.0, abs(right))
    return type(got) is type(right) and close(got, right)


def numbers(observed):
    """The part of the observations that training decides."""
    return [{key: each[key] for key in ("losses", "weights")} for each in observed]


def trains_as(observed, **mistake):
    """Return whether losses and weights are those of this mistake, or right without one."""
    expected = launches(**mistake)[: len(observed)]
    return is_same(numbers(observed), numbers(expected), None)


def trains(**mistake):
    """Return a predicate: losses and weights are wrong, and those of this mistake."""
    return lambda s: not trains_as(s.y) and trains_as(s.y, **mistake)


def seen(key, value):
    """Return a predicate: losses and weights are right, and this was observed in a launch."""
    return lambda s: trains_as(s.y) and any(each[key] == value for each in s.y)


def describe(s):
    """Say the first observation that is not right."""
    for epochs, got, right in zip(EPOCHS, s.y, launches(), strict=False):
        for key in right:
            if not is_same(got[key], right[key], None):
                return f"run to epoch {epochs}, {key}: got {got[key]}, expected {right[key]}"
    return f"{len(s.y)} runs"


MISTAKES = [
    Mistake(
        "the sampler does not know the epoch",
        "Without set_epoch every epoch has the order of epoch 0, so the same samples always "
        "meet in a step. Nothing fails.",
        patch("        sampler.set_epoch(epoch)\n", ""),
        wrong=trains(reshuffled=False),
        hint=2,
    ),
    Mistake(
        "every rank reads all samples",
        "Without DistributedSampler all ranks compute the same gradient. Many GPUs do the work "
        "of one, and no error says so.",
        patch(
            "loader = DataLoader(data, BATCH, sampler=sampler)", "loader = DataLoader(data, BATCH)"
        ),
        wrong=trains(sampled=False),
        hint=1,
    ),
    Mistake(
        "gradients are not clipped",
        "The norm is above MAX_NORM in some steps. Clip after the last backward of a step, when "
        "the gradient is the same on all ranks.",
        patch("                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)\n", ""),
        wrong=trains(clipped=False),
        hint=3,
    ),
    Mistake(
        "adds up microbatches without dividing",
        "Each backward adds the gradient of a mean. The gradient of the mean over all of them "
        "needs loss / ACCUMULATE. Clipping hides this wherever the norm is above MAX_NORM.",
        patch("(loss / ACCUMULATE).backward()", "loss.backward()"),
        wrong=trains(divided=False),
        hint=3,
    ),
    Mistake(
        "the loss of one rank is logged",
        "Each rank has the loss of its own samples. The loss of the step is the mean over ranks: "
        "one all-reduce per epoch is enough.",
        patch(
            "        dist.all_reduce(total)\n", "", "total.item() / (size * ", "total.item() / ("
        ),
        wrong=trains(logged=1),
        hint=1,
    ),
    Mistake(
        "momentum starts again after a resume",
        "The checkpoint must have the optimizer's state, and the resumed run must load it.",
        patch('        optimizer.load_state_dict(state["optimizer"])\n', ""),
        wrong=trains(resumed=False),
        hint=2,
    ),
    Mistake(
        "every rank saves",
        "Ranks write the same file at the same time, and one may read what another has half "
        "written.",
        patch(
            "        if rank == 0:\n            state =",
            "        if True:\n            state =",
            'path.with_suffix(".part")',
            'path.with_suffix(f".part{rank}")',
        ),
        wrong=seen("ranks that save", [0, 1]),
        hint=1,
    ),
    Mistake(
        "writes the checkpoint in place",
        "A crash while torch.save writes leaves half a file, and the old checkpoint is gone. Save "
        "under another name in the same folder, then os.replace.",
        patch('path.with_suffix(".part")', "path", "            os.replace(part, path)\n", ""),
        wrong=seen("saves under the last name", True),
        hint=2,
    ),
    Mistake(
        "all ranks draw the same dropout masks",
        "With one seed on all ranks, dropout drops the same features everywhere. Seed for the "
        "model first, then seed again with the rank.",
        patch("    torch.manual_seed(SEED + 1 + rank)  # masks of dropout\n", ""),
        wrong=seen("dropout masks differ", False),
        hint=3,
    ),
    Mistake(
        "does not leave the process group",
        "A process that ends with connections open may end while another still needs them, and "
        "NCCL warns. Call destroy_process_group on all ranks.",
        patch("    dist.destroy_process_group()\n", ""),
        wrong=seen("group left open", True),
        hint=2,
    ),
    Mistake(
        "sends gradients in every microbatch",
        "Without no_sync DDP all-reduces in each backward: the result is the same, and the traffic "
        "is ACCUMULATE times as large. Forward belongs under no_sync too.",
        patch("with nullcontext() if is_last else model.no_sync():", "with nullcontext():"),
        wrong=seen("gradients sent per step", ACCUMULATE),
        hint=1,
    ),
]

GRADER = Questions(
    functions=("main",),
    cases=lambda draw: [Case("torchrun with 2 ranks")],
    right=launches,
    same=is_same,
    call=launch_twice,
    mistakes=MISTAKES,
    describe=describe,
    timeout_s=3 * TIMEOUT_S,
    shown="losses, checkpoints and the resumed run equal one process, and gradients are sent once "
    "per step",
)

if __name__ == "__main__":
    attend(int(sys.argv[1]), sys.argv[2])

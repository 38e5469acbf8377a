"""One training, 50 SIGKILLs of ranks and hosts: it ends as if nothing had happened.

    host left (network namespace)             host right
    rank 0, rank 1             -- cable --    rank 2, rank 3
    disk-left/, memory-left/                  disk-right/, memory-right/    nothing is shared

A kill ends one rank, or a host: all of its processes and its memory. Then this script ends what is
left of the job and begins it again, as a scheduler does. ZeRO-3, dropout, a checkpoint on disk
every 5 steps, every other one asynchronous, and one in both hosts' memory every 2 steps. Two
questions at the end: is the final loss that of a run without kills, in every bit, and has each
sample been used exactly once? Needs Linux, root, and `ip`.

    python examples/kills.py --kills 50
"""

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from labkit import arguments, run
from labkit.checkpoint import Checkpointer, SampleCursor, SampleLog, audit
from labkit.comm import Group
from labkit.elastic import PartnerMemory, load_newest
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.zero import FullyShardedModule

CONFIG = GPTConfig(vocab=31, context=6, num_layers=2, hidden=16, num_heads=4, ffn=22)
NUM_SAMPLES, BATCH = 10_000, 13  # 13 samples divide over no 4 ranks
ADDRESSES = {"left": "10.231.88.1", "right": "10.231.88.2"}
# Network namespaces. Two runs at once have their own.
NAMESPACES = {host: f"labkit-kills-{os.getpid()}-{host}" for host in ADDRESSES}
PLACES = ("left", "left", "right", "right")  # by rank
CABLE = "cable0"
PORT = 29512
CLONE_NEWNET = 0x40000000  # flag of Linux


def train(group, folder, host, num_steps):
    """Train, from the newest state in memory or on disk; the loss of the last step."""
    torch.manual_seed(group.rank)
    module = GPT(CONFIG)
    module.embedding.register_forward_hook(lambda _, inputs, x: F.dropout(x, 0.1))
    model = FullyShardedModule(module, group)
    optimizer, cursor = AdamW(model.parameters(), 1e-2), SampleCursor(NUM_SAMPLES, BATCH)
    job, extra = (model, optimizer, group), {"data": cursor}
    checkpointer = Checkpointer(folder / f"disk-{host}", *job, extra=extra)
    number = list(ADDRESSES).index(host)
    memory = PartnerMemory(folder / f"memory-{host}", *job, host=number, extra=extra)
    loaded = load_newest(memory, checkpointer)
    log = SampleLog(folder / "samples", attempt(group, folder), group.rank)
    for step in range(loaded.step if loaded else 0, num_steps):
        mine = cursor.next_batch().tensor_split(group.size)[group.rank]
        log.write(step, mine)
        tokens = (mine[:, None] + torch.arange(CONFIG.context + 1)) % CONFIG.vocab
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        (loss * group.size / (BATCH * CONFIG.context)).backward()  # ZeRO-3 averages over ranks
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 5 == 0:
            checkpointer.save(step + 1, wait=step % 2 == 0)
        if (step + 1) % 2 == 0:
            memory.save(step + 1)
        (folder / f"step-{group.rank}").write_text(str(step + 1))
    checkpointer.wait()
    return group.all_reduce(loss.detach()).item()


def attempt(group, folder):
    """One more than that of the start before, the same on all ranks."""
    path = folder / "attempt"
    number = torch.tensor([int(path.read_text()) + 1 if path.exists() else 0])
    group.barrier()  # all have read it
    if group.rank == 0:
        path.write_text(str(number.item()))
    return int(group.broadcast(number).item())


def worker(rank, host, folder, num_steps):
    """A rank on a host, from a fork of this script."""
    with open(f"/run/netns/{NAMESPACES[host]}") as network:
        if ctypes.CDLL(None).setns(network.fileno(), CLONE_NEWNET):
            raise OSError(f"rank {rank} cannot enter the network of host {host}")
    with open(folder / f"output-{host}", "a") as output:
        os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    torch.set_num_threads(1)
    address = f"tcp://{ADDRESSES['left']}:{PORT}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=4)
    loss = train(Group.default(), folder, host, num_steps)
    (folder / f"loss-{rank}").write_text(json.dumps(loss))
    Group.default().barrier()


class Hosts:
    """Two network namespaces with a cable between them, and the ranks of a job on both."""

    def __init__(self, folder, num_steps):
        self.folder, self.num_steps = folder, num_steps
        self.ranks = []

    def __enter__(self):
        left, right = NAMESPACES.values()
        cable = f"link add {CABLE} netns {left} type veth peer name {CABLE} netns {right}"
        with contextlib.ExitStack() as stack:
            for host, name in NAMESPACES.items():
                stack.callback(self.remove, host)
                ip("netns", "add", name)
            ip(*cable.split())
            for host, address in ADDRESSES.items():
                set_up = f"addr add {address}/24 dev {CABLE}", f"link set {CABLE} up"
                for words in (*set_up, "link set lo up"):
                    ip("-n", NAMESPACES[host], *words.split())
            self.made = stack.pop_all()
        return self

    def __exit__(self, *error):
        self.made.close()

    def remove(self, host):
        """End all that runs on a host, and remove the host. It may not have been made."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.kill(host)
            ip("netns", "del", NAMESPACES[host])

    def start(self):
        """Fork the ranks. This process has imported torch, and computes nothing."""
        fork = multiprocessing.get_context("fork")
        for rank, host in enumerate(PLACES):
            arguments = rank, host, self.folder, self.num_steps
            self.ranks.append(fork.Process(target=worker, args=arguments, daemon=True))
            self.ranks[-1].start()

    def is_over(self):
        """Return whether the job has ended well. After a failure kill its remaining ranks and
        restart."""
        codes = [rank.exitcode for rank in self.ranks]
        if not codes or any(codes):
            for rank in self.ranks:
                rank.kill()
                rank.join()
            self.ranks = []
            self.start()
        return codes == [0] * 4

    def kill(self, host):
        """End all that runs on a host, at once."""
        for process in ip("netns", "pids", NAMESPACES[host]).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)


def ip(*words):
    """Run `ip`, and return what it prints."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def number_in(path):
    """The number in a file that another process writes; 0 where there is none yet."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


def killed_often(folder, num_kills, num_steps, seed=0):
    """Run the training with kills at random steps; how many kills of ranks and of hosts."""
    draw = random.Random(seed)
    moments = sorted(draw.sample(range(2, num_steps - 1), num_kills))
    victims = ["a host" if number % 3 == 1 else "a rank" for number in range(num_kills)]
    with Hosts(folder, num_steps) as hosts:
        for moment, victim in zip(moments, victims, strict=True):
            rank, host = draw.randrange(4), draw.choice(list(ADDRESSES))
            while number_in(folder / f"step-{rank}") < moment:
                assert not hosts.is_over(), "the training is over before its kills"
                time.sleep(0.01)
            if victim == "a host":
                hosts.kill(host)
                shutil.rmtree(folder / f"memory-{host}", ignore_errors=True)
            else:
                hosts.ranks[rank].kill()
        while not hosts.is_over():
            time.sleep(0.05)
    return victims.count("a rank"), victims.count("a host")


def undisturbed(world, folder, num_steps):
    """The same on four ranks of one machine."""
    return train(world, folder, PLACES[world.rank], num_steps)


def report(num_kills):
    """Print what happened; whether the training ended as if nothing had happened."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        print("kills of ranks and hosts: not run (needs Linux, root, and `ip` of iproute2)")
        return True
    num_steps = 12 * num_kills
    with tempfile.TemporaryDirectory() as name:
        whole, killed = Path(name, "whole"), Path(name, "killed")
        whole.mkdir(), killed.mkdir()
        expected = run(undisturbed, 4, (whole, num_steps), device="cpu", timeout=300).values[0]
        begin_s = time.monotonic()
        ranks, hosts = killed_often(killed, num_kills, num_steps)
        seconds = time.monotonic() - begin_s
        losses = [json.loads((killed / f"loss-{rank}").read_text()) for rank in range(4)]
        samples = audit(killed / "samples", num_samples=NUM_SAMPLES, batch=BATCH)
        num_attempts = number_in(killed / "attempt") + 1
    is_equal = losses == [expected] * 4
    is_clean = samples.num_steps == num_steps and not samples.lost and not samples.duplicated
    print(
        f"one training of {num_steps} steps on two hosts, with {ranks} kills of a rank and {hosts} "
        f"of a host: {num_attempts} attempts in {seconds:.0f} s\n"
        f"  final loss {losses[0]:.9f}, without kills {expected:.9f}: "
        f"{'equal in every bit' if is_equal else 'DIFFERENT'}\n"
        f"  samples lost {len(samples.lost)}, used twice {len(samples.duplicated)}"
    )
    return is_equal and is_clean


def main():
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=arguments.count, default=50, help="how many; 50")
    chosen = parser.parse_args()
    return 0 if report(chosen.kills) else 1


if __name__ == "__main__":
    sys.exit(main())

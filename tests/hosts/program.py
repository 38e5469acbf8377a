"""Programs that the tests run on two hosts: program.py:greet, program.py:timed_on_slow_links..."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

import labkit

NUM_STEPS = 12
MEASURED_NUMEL = 300_000


def greet(world):
    print(f"hello from {socket.gethostname()}")
    ranks = world.all_gather(torch.tensor([world.rank]))
    with world.region("thinking"):
        time.sleep(0.2)
    return {"ranks": ranks, "host": socket.gethostname(), "words": sys.argv[1:]}


def bytes_sent():
    """Through this host's cable so far, headers included."""
    words = "tc -s qdisc show dev cable0".split()
    listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return int(re.search(r"Sent (\d+) bytes", listed)[1])


def timed_on_slow_links(world):
    """Time an all_reduce at each rate, in bits per second, of this host's cable.

    Its seconds, the least of some: whatever else the machine does only ever adds to it. And the
    bytes that have left for it through the cable.
    """
    greeting = greet(world)
    seconds, sent_bytes = {}, {}
    for megabits in (40, 80):
        limit = f"tc qdisc replace dev cable0 root tbf rate {megabits}mbit burst 32kb latency 1s"
        subprocess.run(limit.split(), check=True)
        times, before_bytes = [], bytes_sent()
        for _ in range(5):
            world.barrier()
            started = time.monotonic()
            world.all_reduce(torch.ones(MEASURED_NUMEL))
            times.append(time.monotonic() - started)
        seconds[megabits * 10**6] = min(times)
        sent_bytes[megabits * 10**6] = (bytes_sent() - before_bytes) / 5
    subprocess.run("tc qdisc del dev cable0 root".split(), check=True)
    return {**greeting, "seconds": seconds, "sent_bytes": sent_bytes}


def train_with_checkpoints(world):
    """Count steps; after a restart, go on from the checkpoint of this host."""
    checkpoint = Path(os.environ["CHECKPOINTS"]) / f"checkpoint-{socket.gethostname()}.json"
    first = 0
    if labkit.attempt() > 0 and checkpoint.exists():
        first = json.loads(checkpoint.read_text())["step"] + 1
    for step in range(first, NUM_STEPS):
        world.all_reduce(torch.ones(1000))  # the step
        if world.rank == 0:
            checkpoint.write_text(json.dumps({"step": step}))
            print(f"step {step} of attempt {labkit.attempt()} is done", flush=True)
        if labkit.attempt() == 0:  # in which the other host is to end in the middle
            time.sleep(0.25)
            if socket.gethostname() == "right" and step == NUM_STEPS // 2:
                time.sleep(600)
    return first, world.size, os.environ["GLOO_SOCKET_IFNAME"]


def differ_across_hosts(world):
    """The ranks of each host agree; those of different hosts do not, and gloo does not notice."""
    op = "max" if socket.gethostname() == "right" else "sum"
    x = torch.ones(4)
    return world.all_reduce(x, op=op)


def leave_the_other_host_waiting(world):
    """The ranks of the left host wait for those of the right one, which have returned."""
    world.all_reduce(torch.ones(4))
    if socket.gethostname() == "left":
        world.barrier()  # in vain

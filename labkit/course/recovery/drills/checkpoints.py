"""Drills on checkpoints and outages: how often to save, what is lost, what is read."""

import math

from labkit import calc
from labkit.calc.result import Result
from labkit.interview.drills.drill import MODEL_SIZES, amounts, drill
from labkit.interview.drills.question import Solution, Trap

_JOBS = {
    "write": amounts("15 s", "20 s", "30 s", "45 s", "60 s", "90 s", "2 min", "3 min", "5 min"),
    "mtbf": amounts("2 h", "2.5 h", "3.1 h", "4 h", "5 h", "6 h", "8 h", "10 h", "12 h", "24 h"),
}


@drill(
    "ft-3",
    "Checkpoint interval by Young",
    difficulty=2,
    notebook="18_combining_and_planning",
    prompt="Training is idle for {write} while a checkpoint is written, and the job is "
    "interrupted every {mtbf} on average. How much work should lie between two checkpoints, by "
    "Young's formula?",
    draws=_JOBS,
    unit="min",
    between=("5 min", "200 min"),
)
def young_interval(write: float, mtbf: float) -> Solution:
    """sqrt(2 W M)."""
    interval = calc.checkpoint_interval(write, mtbf)
    lost = calc.lost_share(interval, write, mtbf)
    return Solution(
        interval,
        [
            f"W = {write:g} s, M = {mtbf:g} s.",
            f"2 W M = {2 * write * mtbf:.4g} s^2; its root is {float(interval):.4g} s.",
            f"That is {interval.to('min'):.3g} min; writing and repeating then take {lost}.",
        ],
        [
            Trap(
                "the factor 2 left out",
                float(interval) / math.sqrt(2),
                "Half an interval is lost on average, which is where the 2 comes from.",
            ),
            Trap(
                "half of the mean time",
                mtbf / 2,
                "That leaves out what writing costs: the interval goes with the root of both.",
            ),
            Trap(
                "twice the root",
                float(interval) * math.sqrt(2),
                "The 2 stands under the root.",
            ),
            Trap(
                "a factor of 60 among the units",
                float(interval) / math.sqrt(60),
                "Both times in the same unit before they are multiplied.",
            ),
        ],
    )


@drill(
    "ft-3",
    "Time lost to checkpoints and interruptions",
    difficulty=2,
    notebook="18_combining_and_planning",
    prompt="A checkpoint is written every {interval}, which stops training for {write}. The job is "
    "interrupted every {mtbf} on average, and needs {restart} to restart. Which share of all time "
    "is lost, to first order?",
    draws={
        **_JOBS,
        "interval": amounts("15 min", "30 min", "45 min", "1 h", "2 h"),
        "restart": amounts("3 min", "5 min", "10 min", "20 min"),
    },
    unit="%",
    between=("3%", "60%"),
    where=lambda interval, mtbf, write: interval < mtbf / 2 and write < interval / 4,
)
def share_lost(interval: float, write: float, mtbf: float, restart: float) -> Solution:
    """W/T + (T/2 + R)/M."""
    lost = calc.lost_share(interval, write, mtbf, restart)
    writing = write / interval
    undone = float(lost) - writing
    return Solution(
        lost,
        [
            f"Writing: {write:g} s / {interval:g} s = {writing:.3%}.",
            f"Each interruption costs half an interval and the restart, {interval / 2 + restart:g} "
            f"s of {mtbf:g} s: {undone:.3%}.",
            f"Together {lost}.",
        ],
        [
            Trap(
                "writing left out",
                undone,
                "Training is idle whenever a checkpoint is written.",
            ),
            Trap(
                "the whole interval lost each time",
                calc.lost_share(interval, write, mtbf, restart + interval / 2),
                "An interruption comes in the middle on average: half of an interval is lost.",
            ),
            Trap(
                "the restart left out",
                calc.lost_share(interval, write, mtbf),
                "Every interruption also costs the restart.",
            ),
            Trap("writing alone", writing, "Interruptions undo work, too."),
        ],
    )


@drill(
    "ft-5",
    "GPU-hours of one outage",
    difficulty=1,
    notebook="19_when_it_hangs",
    prompt="A job on {gpus} GPUs hangs. The collective's timeout ends it after {timeout}, it takes "
    "{restart} until it runs again, and checkpoints are written every {interval}, so half of that "
    "is lost on average. How many GPU-hours does it cost?",
    draws={
        "gpus": (256, 512, 1024, 2048, 4096, 16384),
        "timeout": amounts("5 min", "10 min", "30 min"),
        "restart": amounts("4 min", "8 min", "15 min"),
        "interval": amounts("20 min", "40 min", "1 h", "2 h"),
    },
    unit="",
    between=("30", "50000"),
)
def outage_cost(gpus: int, timeout: float, restart: float, interval: float) -> Solution:
    """Return all GPUs times everything that they wait for or repeat."""
    spans = {"restart_s": restart, "since_checkpoint_s": interval / 2}
    lost = calc.lost_gpu_hours(gpus, until_noticed_s=timeout, **spans)
    minutes = (timeout + restart + interval / 2) / 60
    return Solution(
        lost,
        [
            f"Until noticed {timeout / 60:g} min, restart {restart / 60:g} min, repeated "
            f"{interval / 120:g} min.",
            f"{minutes:g} min together, on {gpus:,} GPUs.",
            f"{gpus:,} x {minutes / 60:.4g} h = {lost.value:,.0f} GPU-hours.",
        ],
        [
            Trap(
                "the timeout alone",
                calc.lost_gpu_hours(gpus, until_noticed_s=timeout),
                "Restarting takes time, and work since the last checkpoint is done again.",
            ),
            Trap(
                "the whole interval repeated",
                calc.lost_gpu_hours(
                    gpus, until_noticed_s=timeout, restart_s=restart, since_checkpoint_s=interval
                ),
                "On average half of an interval is lost.",
            ),
            Trap(
                "repeated work left out",
                calc.lost_gpu_hours(gpus, until_noticed_s=timeout, restart_s=restart),
                "Work since the last checkpoint is lost as well.",
            ),
            Trap("GPU-minutes", lost * 60, "GPU-hours were asked for."),
        ],
    )


@drill(
    "ft-3",
    "Checkpoint interval of an asynchronous save",
    difficulty=2,
    notebook=None,
    prompt="A node fails once in {days} days on average, and a job has {nodes} nodes. A checkpoint "
    "takes {write} to write, and training is idle for {blocking}% of that. How much work should "
    "lie between two checkpoints, by Young's formula?",
    draws={
        "days": (120, 150, 200, 250, 300, 365),
        "nodes": (256, 512, 768, 1024, 2048),
        "write": amounts("1 min", "90 s", "2 min", "3 min", "5 min"),
        "blocking": (5, 10, 15, 20, 25),
    },
    unit="min",
    between=("1 min", "200 min"),
)
def asynchronous_interval(days: int, nodes: int, write: float, blocking: int) -> Solution:
    """sqrt(2 W M), W being the idle time and M the job's."""
    idle, mtbf = write * blocking / 100, days * 86400 / nodes
    interval = calc.checkpoint_interval(idle, mtbf)
    return Solution(
        interval,
        [
            f"The job's mean time: {days} x 86,400 s / {nodes:,} = {mtbf:,.0f} s.",
            f"Idle: {blocking}% of {write:g} s = {idle:g} s.",
            f"The root of 2 x {idle:g} s x {mtbf:,.0f} s is {float(interval):.4g} s, "
            f"{interval.to('min'):.3g} min.",
        ],
        [
            Trap(
                "the whole write",
                calc.checkpoint_interval(write, mtbf),
                "While the rest is written, training goes on: only idle time costs.",
            ),
            Trap(
                "the mean time of one node",
                calc.checkpoint_interval(idle, days * 86400),
                "Any node that fails stops the job.",
            ),
            Trap(
                "the factor 2 left out",
                float(interval) / math.sqrt(2),
                "Half an interval is lost on average, which is where the 2 comes from.",
            ),
            Trap(
                "the time in which nothing is idle",
                calc.checkpoint_interval(write - idle, mtbf),
                "That part of the write costs nothing; the other part does.",
            ),
        ],
    )


@drill(
    "ft-4",
    "Bytes read at resharding",
    difficulty=1,
    notebook=None,
    prompt="{saved} ranks saved a model of {size} parameters: masters and Adam's two moments in "
    "float32, sharded evenly over the ranks (ZeRO). Now {loaded} ranks load it. How many bytes "
    "does a rank read, if it reads what it needs and no more?",
    draws={
        "saved loaded": (
            *((64, 48), (64, 96), (128, 96), (128, 112), (256, 192), (256, 240), (512, 384)),
            *((512, 448), (1024, 768), (48, 64), (96, 128), (192, 256)),
        ),
        "size": MODEL_SIZES,
    },
    unit="GB",
    between=("0.01 GB", "100 GB"),
)
def bytes_read(saved: int, loaded: int, size: float) -> Solution:
    """12 N / (ranks that load)."""
    whole = 12 * size
    files = -(-saved // loaded) + 1  # a shard may begin in the middle of a file
    return Solution(
        Result(whole / loaded, "bytes"),
        [
            f"The whole: 3 x 4 bytes x {size:.4g} = {whole / 1e9:,.4g} GB.",
            f"A new rank owns 1/{loaded} of it. The old layout does not matter: the files say "
            "which elements they have.",
            f"{whole / 1e9:,.4g} GB / {loaded} = {whole / loaded / 1e9:.4g} GB.",
        ],
        [
            Trap(
                "the share of a rank that saved",
                Result(whole / saved, "bytes"),
                "Each rank reads for the new layout, not for the old one.",
            ),
            Trap(
                "everything",
                Result(whole, "bytes"),
                "A rank reads the slices that it owns: no rank needs the whole.",
            ),
            Trap(
                "whole files",
                Result(files * whole / saved, "bytes"),
                "A slice of a file can be read without the rest of it.",
            ),
            Trap(
                "masters only",
                Result(whole / 3 / loaded, "bytes"),
                "Adam's moments are part of the state, 8 of 12 bytes.",
            ),
        ],
    )


@drill(
    "ft-7",
    "Nodes in repair",
    difficulty=1,
    notebook=None,
    prompt="A node fails once in {days} days on average, and its repair takes {repair}. A cluster "
    "keeps {nodes} nodes working, and replaces each that fails by a spare one. How many nodes are "
    "in repair, on average?",
    draws={
        "days": (90, 120, 150, 200, 250, 300),
        "repair": amounts("8 h", "12 h", "36 h", "48 h", "72 h"),
        "nodes": (512, 768, 1024, 1536, 2048, 3072),
    },
    unit="",
    between=("0.5", "120"),
)
def nodes_in_repair(days: int, repair: float, nodes: int) -> Solution:
    """Failures per second times the seconds of a repair: Little's law."""
    mtbf = calc.mean_time_between_interruptions(nodes, days * 24)
    broken = repair / float(mtbf)
    return Solution(
        broken,
        [
            f"Failures: {nodes:,} nodes / {days} days = {nodes / days:.4g} a day.",
            f"Each is in repair for {repair / 86400:g} days.",
            f"{nodes / days:.4g} x {repair / 86400:g} = {broken:.4g} nodes on average; more "
            "spares than that are needed, since failures come at random.",
        ],
        [
            Trap(
                "failures per day",
                nodes / days,
                "That many break in a day; they stay away for as long as the repair takes.",
            ),
            Trap("of one node", repair / (days * 86400), "All nodes can fail."),
            Trap(
                "hours taken for days",
                24 * broken,
                "Failures per day go with days of repair.",
            ),
        ],
    )

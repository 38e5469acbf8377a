"""Failures and slow ranks: checkpoint intervals, the cost of an outage, holders of copies.

A checkpoint interval balances the time to write checkpoints against lost work:

    lost per second  =  write / interval  +  (interval / 2 + restart) / MTBF         to first order
                     =  1 - T / (M e^(R/M) (e^((T + W)/M) - 1))                      exactly

    young   sqrt(2 W M)                                minimum of the first, for W much below M
    daly    sqrt(2 W M) (1 + sqrt(W/(2M))/3 + W/(18M)) - W      of the second, up to W = 2 M

T seconds of work between checkpoints, W to write one, R to restart, M mean time between
interruptions.

In an outage every GPU is paid for, whether it computes or is idle. Seconds, GPU-hours:

    lost time = until the failure is detected + until the job runs again + all since the checkpoint

Unequal ranks wait for the slowest, or for some of them. A rank needs t seconds for its batch of B
samples; communication is free:

    synchronous               n B / max(t)             every rank waits for every other
    the first k of n count    k B / (k-th least t)     the others' batches are thrown away
    asynchronous              sum of B / t             no rank waits

A host's state has copies on other hosts. Failures of all holders at once are fatal:

    ring(4, 2)      [[1], [2], [3], [0]]: each host, and the others that hold its state
    groups(4, 2)    [[1], [0], [3], [2]]

Papers: Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974;
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3),
2006; Chen et al., "Revisiting distributed synchronous SGD", arXiv:1604.00981 (backup workers).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from labkit import arguments
from labkit.calc.result import Result, number_of, total
from labkit.calc.units import seconds_text

METHODS = ("young", "daly")
# The interval sqrt(2 W M) loses the share sqrt(2 W / M) of all time: everything from W = M/2 on.
_OUT_OF_RANGE = (
    "; out of Young's range, which is W much below M: from W = M/2 on this loses all time by its "
    "own formula, and Daly's is good up to W = 2 M"
)


def mean_time_between_interruptions(interruptions: float, hours: float) -> Result:
    """Return the mean time between interruptions: running time over their number.

    round(mean_time_between_interruptions(419, 54 * 24).to("h"), 2) == 3.09, of Llama 3's training
    """
    arguments.number(
        "interruptions", interruptions, "without one there is no mean; give 1 or more", above=0
    )
    arguments.number("hours", hours, "give how long the job ran", above=0)
    return Result(
        hours * 3600 / interruptions,
        "seconds",
        "mean time between interruptions",
        "time / interruptions",
        f"{hours:g} h / {interruptions:g}",
        source="Grattafiori et al., arXiv:2407.21783, section 3.3.4",
    )


def checkpoint_interval(
    write_s: float | Result, mtbf_s: float | Result, method: str = "young"
) -> Result:
    """Return the seconds of work between the end of one checkpoint and the next.

    write_s: seconds that training is idle. mtbf_s: of the whole job, in seconds. If Young's
    interval would lose all time, the result's convention says so.
    round(checkpoint_interval(60, 3.09 * 3600).to("min"), 1) == 19.3
    """
    write_s, mtbf = number_of(write_s, "write_s", "seconds"), number_of(mtbf_s, "mtbf_s", "seconds")
    arguments.number("write_s", write_s, "what costs nothing is written all the time", above=0)
    arguments.number("mtbf_s", mtbf, "give the mean time between interruptions", above=0)
    _checked(method)
    young = math.sqrt(2 * write_s * mtbf)
    formula, source = "sqrt(2 W M)", "Young, CACM 17(9), 1974"
    interval = young
    if method == "daly":
        formula = "sqrt(2 W M) (1 + sqrt(W/2M)/3 + W/18M) - W; M where W is 2 M or more"
        source = "Daly, FGCS 22(3), 2006"
        ratio = write_s / (2 * mtbf)
        interval = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s if ratio < 1 else mtbf
    return Result(
        interval,
        "seconds",
        "time between checkpoints",
        formula,
        f"W = {write_s:g} s, M = {mtbf:g} s",
        convention="interruptions are independent; a restart costs the same whenever it comes"
        + (_OUT_OF_RANGE if method == "young" and write_s >= mtbf / 2 else ""),
        source=source,
    )


def lost_share(
    interval_s: float | Result,
    write_s: float | Result,
    mtbf_s: float | Result,
    restart_s: float | Result = 0.0,
    method: str = "young",
) -> Result:
    """Return the share of all time that is lost to writing checkpoints and to interruptions.

    method: "young", the first order, for times well below the MTBF; ValueError if that is more than
    all time. "daly": the exact mean for exponential interruptions.
    round(float(lost_share(1200, 60, 3600, 600, "daly")), 3) == 0.327
    """
    interval, mtbf = (
        number_of(interval_s, "interval_s", "seconds"),
        number_of(mtbf_s, "mtbf_s", "seconds"),
    )
    write_s = number_of(write_s, "write_s", "seconds")
    restart_s = number_of(restart_s, "restart_s", "seconds")
    arguments.number("interval_s", interval, "work comes between two checkpoints", above=0)
    arguments.number("write_s", write_s, "0 or more", least=0)
    arguments.number("mtbf_s", mtbf, "give the mean time between interruptions", above=0)
    arguments.number("restart_s", restart_s, "0 or more", least=0)
    if _checked(method) == "daly":
        return _exact_share(interval, write_s, mtbf, restart_s)
    share = write_s / interval + (interval / 2 + restart_s) / mtbf
    if share > 1:
        raise ValueError(
            f"{share:.3g} times all time would be lost: interval_s={interval:g}, write_s="
            f"{write_s:g} and restart_s={restart_s:g} are too long for mtbf_s={mtbf:g}, and no "
            "work gets done; this formula is for times well below the MTBF, and method='daly' "
            "for all"
        )
    return Result(
        share,
        "share",
        "lost time",
        "W / T + (T/2 + R) / M",
        f"{write_s:g} / {interval:g} + ({interval:g} / 2 + {restart_s:g}) / {mtbf:g}",
        convention="first order: for T and R much below M",
        source="Young, CACM 17(9), 1974",
    )


def _exact_share(interval: float, write_s: float, mtbf: float, restart_s: float) -> Result:
    """Return the exact lost share: a turn of work and write restarts until no interruption hits
    it."""
    turn = mtbf * math.exp(restart_s / mtbf) * math.expm1((interval + write_s) / mtbf)
    return Result(
        1 - interval / turn,
        "share",
        "lost time",
        "1 - T / (M e^(R/M) (e^((T + W)/M) - 1))",
        f"T = {interval:g} s, W = {write_s:g} s, M = {mtbf:g} s, R = {restart_s:g} s",
        convention="interruptions are exponential; one in a restart begins another "
        "one. If none comes in a restart, use M + R instead of M e^(R/M)",
        source="Daly, FGCS 22(3), 2006, equation 13",
    )


def _checked(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"method={method!r:.60}: give 'young' or 'daly'")
    return method


_SECONDS_PER_HOUR = 3600


def lost_gpu_hours(
    num_gpus: int,
    *,
    until_noticed_s: float,
    restart_s: float = 0.0,
    since_checkpoint_s: float = 0.0,
) -> Result:
    """Return the GPU-hours that a job loses by one outage.

    until_noticed_s: from the fault to the end of the job, such as torch's timeout. restart_s: from
    there to the first step. since_checkpoint_s: work that must be done again; half of the interval
    between checkpoints, on average.

    ValueError for negative or infinite numbers, and for num_gpus below 1.
    """
    arguments.counted("num_gpus", num_gpus)
    spans = {
        "until_noticed_s": until_noticed_s,
        "restart_s": restart_s,
        "since_checkpoint_s": since_checkpoint_s,
    }
    parts = {}
    for name, seconds in spans.items():
        arguments.number(name, seconds, "0 or more", least=0)
        how = f"{num_gpus:,} GPUs * {seconds_text(seconds)}"
        hours = num_gpus * seconds / _SECONDS_PER_HOUR
        parts[name] = Result(hours, "", name, substitution=how)
    return total("GPU-hours lost", parts)


_SOURCE = "Chen et al., arXiv:1604.00981"


def synchronous_samples_per_s(
    seconds_by_rank: Sequence[float], batch: int, wait_for: int | None = None
) -> Result:
    """Return the samples per second of ranks that step together.

    wait_for: ranks that a step waits for; None: all.

    synchronous_samples_per_s([0.4, 0.4, 0.5], batch=32) == 192
    ValueError for no rank, for times that are not above 0, and for a wait_for above the ranks.
    """
    times = _checked_ranks(seconds_by_rank)
    count = len(times) if wait_for is None else arguments.counted("wait_for", wait_for)
    if count > len(times):
        raise ValueError(f"wait_for={count} of {len(times)} ranks: give {len(times)} or fewer")
    batch, slowest = arguments.counted("batch", batch), sorted(times)[count - 1]
    return Result(
        count * batch / slowest,
        "",
        "samples per second, in step",
        "k B / (k-th least t)",
        f"{count} * {batch} / {slowest:g} s",
        convention="communication is free; what comes too late is thrown away",
        source=_SOURCE,
    )


def asynchronous_samples_per_s(seconds_by_rank: Sequence[float], batch: int) -> Result:
    """Return the samples per second of ranks that never wait. Errors as above."""
    times, batch = _checked_ranks(seconds_by_rank), arguments.counted("batch", batch)
    return Result(
        sum(batch / each for each in times),
        "",
        "samples per second, each at its own pace",
        "sum of B / t",
        f"{batch} * sum of 1/t of {len(times)} ranks",
        convention="gradients are computed on parameters that others have changed since",
        source=_SOURCE,
    )


def _checked_ranks(seconds_by_rank: Sequence[float]) -> list[float]:
    if not seconds_by_rank:
        raise ValueError("seconds_by_rank is empty: give the seconds of 1 rank or more")
    for each in seconds_by_rank:
        arguments.number("seconds_by_rank", each, "a batch takes time", above=0)
    return list(seconds_by_rank)


Holders = Sequence[Sequence[int]]


def ring(n: int, m: int) -> Holders:
    """Place each host's state on the next ones."""
    return [[(host + step) % n for step in range(1, m)] for host in range(n)]


def groups(n: int, m: int) -> Holders:
    """Place each host's state on the others of its group."""
    return [[o for o in range(h - h % m, h - h % m + m) if o != h] for h in range(n)]


_MOST_OPERATIONS = 2**24


def fatal_share(holders: Holders, k: int) -> float:
    """Return the share of all sets of k failed hosts that include every holder of some state.

    The result is exact. Hosts are decided one after the other, and a partial loss is a set of
    states of which all holders so far have failed. Rings and groups of thousands of hosts have few
    partial losses.

    fatal_share(groups(4, 2), 2) == 2 / 6
    ValueError for a k above the hosts, for a holder that is no host, and for too many partial
    losses, such as those of a random placement on thousands of hosts with a large k.
    """
    num_hosts = len(holders)
    k = arguments.counted("k", k, f"0 to {num_hosts} failed hosts", least=0, most=num_hosts)
    hosts = f"a holder is a host, 0 to {num_hosts - 1}"
    for each in itertools.chain.from_iterable(holders):
        arguments.counted("holders", each, hosts, least=0, most=num_hosts - 1)
    place = {host: place for place, host in enumerate(_side_by_side(holders))}
    # Bit p: the host at place p holds it.
    masks = {sum(1 << place[each] for each in {host, *its}) for host, its in enumerate(holders)}
    beginning: list[list[int]] = [[] for _ in holders]
    for mask in masks:
        beginning[(mask & -mask).bit_length() - 1].append(mask)
    # By the holders yet to fail of each state that may be lost: sets of failures, by their number.
    ways: dict[frozenset[int], dict[int, int]] = {frozenset(): {0: 1}}
    size = 0
    for here, states in enumerate(beginning):
        size += sum(len(alive) ** 2 + len(counts) for alive, counts in ways.items())
        if size > _MOST_OPERATIONS:
            raise ValueError(
                f"k={k} failures of {num_hosts} hosts: {size:,} operations on partial losses, the "
                f"limit is {_MOST_OPERATIONS:,}: place copies in groups or in a ring, or give "
                "fewer holders, fewer hosts or a smaller k"
            )
        after: dict[frozenset[int], dict[int, int]] = {}
        bit, num_left = 1 << here, num_hosts - here - 1
        for alive, counts in ways.items():
            survived = frozenset(mask for mask in alive if not mask & bit)
            _add(after, survived, counts, range(k - num_left, k + 1))
            failed = {mask & ~bit for mask in (*alive, *states)}
            if 0 not in failed:
                spare = k - 1 - min(counts)
                more = {number + 1: count for number, count in counts.items()}
                _add(after, _least(failed, spare), more, range(k - num_left, k + 1))
        ways = after
    safe = sum(counts.get(k, 0) for counts in ways.values())
    return (math.comb(num_hosts, k) - safe) / math.comb(num_hosts, k)


def _side_by_side(holders: Holders) -> list[int]:
    """Return all hosts so ordered that hosts which hold a state together are near each other."""
    together: list[set[int]] = [set() for _ in holders]
    for host, its in enumerate(holders):
        for each in {host, *its}:
            together[each].update({host, *its})
    order: dict[int, None] = {}
    for first in range(len(holders)):
        waiting = [] if first in order else [first]
        order.update(dict.fromkeys(waiting))
        for host in waiting:  # grows
            near = sorted(together[host] - order.keys())
            waiting.extend(near)
            order.update(dict.fromkeys(near))
    return list(order)


def _least(masks: set[int], spare: int) -> frozenset[int]:
    """Drop states that need more than `spare` failures, and those that contain another."""
    kept: list[int] = []
    for mask in sorted(masks, key=int.bit_count):
        if mask.bit_count() <= spare and all(mask & each != each for each in kept):
            kept.append(mask)
    return frozenset(kept)


def _add(
    ways: dict[frozenset[int], dict[int, int]],
    alive: frozenset[int],
    counts: dict[int, int],
    useful: range,
) -> None:
    """Add sets of failures, without numbers of them from which k cannot be reached."""
    counts = {number: count for number, count in counts.items() if number in useful}
    if counts:
        into = ways.setdefault(alive, {})
        for number, count in counts.items():
            into[number] = into.get(number, 0) + count

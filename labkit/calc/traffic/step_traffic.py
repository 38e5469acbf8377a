"""What data parallelism sends in one optimizer step, in times the parameters.

                      one microbatch                       k microbatches
    ddp               all-reduce                     2     2         reduced once
    zero1             reduce-scatter, all-gather     2     2         reduced once
    zero2             the same, gradients sharded    2     k + 1     reduced for every microbatch
    zero3             all-gather twice, reduce-      3     3k        gathered and reduced for every
                      scatter                                        microbatch

A ring's share is (n-1)/n of each, per rank. zero2 keeps only its shard of the gradients from one
microbatch to the next, so it must reduce each; zero1 may add them up first.
Paper: Rajbhandari et al., arXiv:1910.02054, section 7, for one microbatch.
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_itemsize, check_not_negative, check_ranks, shown
from labkit.calc.result import Result, number_of, total_bytes
from labkit.calc.units import number_text


def step_traffic_bytes(
    strategy: str,
    num_params: float | Result,
    world_size: int,
    *,
    microbatches: int = 1,
    itemsize: int = 2,
    gradient_itemsize: int | None = None,
) -> Result:
    """Bytes that one rank sends in one optimizer step, by collective.

    strategy: "ddp", "zero1", "zero2" or "zero3". itemsize: bytes of a parameter on the wire, and
    of a gradient where gradient_itemsize says nothing else.
    float(step_traffic_bytes("zero3", N, n)) / (itemsize * N) == 3 (n-1)/n
    """
    microbatches = check_ranks(microbatches, "microbatches")
    strategies = _rounds(microbatches)
    if not isinstance(strategy, str) or strategy not in strategies:
        raise ValueError(f"strategy={shown(strategy)}: give one of {', '.join(strategies)}")
    num = number_of(num_params, "num_params", "parameters")
    check_not_negative(num, "num_params")
    n = check_ranks(world_size)
    itemsize = check_itemsize(itemsize)
    of_gradient = itemsize
    if gradient_itemsize is not None:
        of_gradient = check_itemsize(gradient_itemsize, "gradient_itemsize")
    parts = {}
    for name, times in strategies[strategy].items():
        size = itemsize if "gather" in name else of_gradient
        rounds = 2 * times if name == "all-reduce" else times
        how = f"{rounds} * {n - 1}/{n} * {number_text(num)} * {size} B"
        parts[name] = (rounds * (n - 1) / n * num * size, how)
    return total_bytes(
        f"sent by one rank of {strategy} in a step",
        parts,
        formula="times * (n-1)/n * N * bytes, by collective",
        convention=f"rings; {microbatches} microbatch{'es' * (microbatches > 1)} to a step",
        source="Rajbhandari et al., arXiv:1910.02054, section 7",
    )


def step_traffic_volume(strategy: str, microbatches: int = 1) -> Result:
    """The same in times the parameters, for many ranks: 2, 2, 2 and 3 for one microbatch."""
    strategies = _rounds(check_ranks(microbatches, "microbatches"))
    if not isinstance(strategy, str) or strategy not in strategies:
        raise ValueError(f"strategy={shown(strategy)}: give one of {', '.join(strategies)}")
    rounds = strategies[strategy]
    volume = sum(2 * times if name == "all-reduce" else times for name, times in rounds.items())
    return Result(
        volume,
        "",
        f"volume of {strategy}",
        substitution=" + ".join(f"{times} {name}" for name, times in rounds.items()),
        convention="in times the parameters; (n-1)/n taken as 1; an all-reduce counts twice",
        source="Rajbhandari et al., arXiv:1910.02054, section 7",
    )


def _rounds(k: int) -> dict[str, dict[str, int]]:
    """strategy -> collective -> how often it goes over all parameters."""
    return {
        "ddp": {"all-reduce": 1},
        "zero1": {"reduce-scatter": 1, "all-gather": 1},
        "zero2": {"reduce-scatter": k, "all-gather": 1},
        "zero3": {"all-gather": 2 * k, "reduce-scatter": k},
    }

"""What travels in a step when optimizer states are kept elsewhere, and how fast it must.

    to="cpu"     gradient down, updated parameter up     (K_g + K_p) N/d    states never move
                 down after each of k microbatches       (k K_g + K_p) N/d  and added up there
    to="disk"    masters and moments read, and written   2 K_o N/d          as in ZeRO-Infinity
                 moments alone: masters_stay=True        2 K_m N/d          as labkit.zero.on_disk

N parameters over d ranks, K bytes each by kind (recipe.py), K_o = K_master + K_m; what
bandwidth that takes depends on the seconds of a step in which it should be hidden.
Papers: Ren et al., "ZeRO-Offload", arXiv:2101.06840, section 3; Rajbhandari et al.,
"ZeRO-Infinity", arXiv:2104.07857, section 4.
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_above_zero, check_flag, check_ranks, shown
from labkit.calc.memory.model_state import count_of
from labkit.calc.memory.recipe import Recipe, recipe_of
from labkit.calc.result import Result, number_of, total
from labkit.calc.units import number_text


def offload_traffic_bytes(
    num_params: float | Result,
    recipe: Recipe | str,
    to: str = "cpu",
    dp: int = 1,
    *,
    masters_stay: bool = False,
    microbatches: int = 1,
) -> Result:
    """Bytes that one rank moves in an optimizer step, both ways together, by part.

    microbatches: after each of which gradients go down to the CPU, to be added up there; 1 where
    they are added up on the GPU. To disk go states only, once in a step.
    masters_stay: of states on disk, masters are kept in memory; without masters it is no matter.
    offload_traffic_bytes(7e9, "zero_paper", to="cpu", dp=8).to("GB") == 3.5
    ValueError for another place than "cpu" or "disk", and for masters_stay on the CPU; TypeError
    for a masters_stay that is neither True nor False.
    """
    check_flag(masters_stay, "masters_stay")
    recipe, dp = recipe_of(recipe), check_ranks(dp, "dp")
    k = check_ranks(microbatches, "microbatches")
    share = -(-count_of(num_params) // dp)
    sizes = _moved(recipe, to, masters_stay, k)
    return total(
        f"moved by one rank in a step, {'moments' if masters_stay else 'states'} on {to}",
        {
            what: Result(
                size * share,
                "bytes",
                what,
                substitution=f"{number_text(size)} B * {share:,}",
            )
            for what, size in sizes.items()
        },
        formula={
            "cpu": f"({f'{k} ' * (k > 1)}K_g + K_p) N/d",
            "disk": f"2 K_{'m' if masters_stay else 'o'} N/d",
        }[to],
        convention=f"{recipe.name}; every rank moves its share of the states, as with ZeRO 1 to 3",
        source="ZeRO-Offload, arXiv:2101.06840; ZeRO-Infinity, arXiv:2104.07857",
    )


def _moved(recipe: Recipe, to: str, masters_stay: bool, microbatches: int) -> dict[str, float]:
    """Bytes per parameter of the share, by what they are."""
    if not isinstance(to, str) or to not in ("cpu", "disk"):
        raise ValueError(f'to={shown(to)}: give "cpu" or "disk"')
    if to == "cpu":
        if masters_stay:
            raise ValueError('masters_stay=True is for to="disk": on the CPU masters are, and stay')
        return {
            "gradients, down": microbatches * recipe.gradient_bytes,
            "parameters, up": recipe.parameter_bytes,
        }
    states = sum(recipe.moment_bytes) + (0 if masters_stay else recipe.master_bytes)
    return {"states, read": states, "states, written": states}


def offload_bandwidth(
    num_params: float | Result,
    recipe: Recipe | str,
    step_s: float | Result,
    to: str = "cpu",
    dp: int = 1,
    *,
    masters_stay: bool = False,
) -> Result:
    """Bytes per second that hide the traffic behind a step of `step_s` seconds, of each rank.

    ValueError for a time that is not above 0; arguments and other errors as of
    `offload_traffic_bytes`.
    """
    seconds = number_of(step_s, "step_s", "seconds")
    check_above_zero(seconds, "step_s", "a step takes time, such as 1.5 seconds")
    moved = offload_traffic_bytes(num_params, recipe, to, dp, masters_stay=masters_stay)
    return Result(
        float(moved) / seconds,
        "bytes/s",
        f"bandwidth between a rank and its {to}",
        formula="bytes of a step / seconds of a step",
        substitution=f"{number_text(float(moved))} B / {number_text(seconds)} s",
        convention="all of it hidden behind computing; both ways together",
        source="ZeRO-Infinity, arXiv:2104.07857, section 4",
    )

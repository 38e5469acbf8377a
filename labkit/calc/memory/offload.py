"""What travels in a step when optimizer states are kept elsewhere, and how fast it must.

    to="cpu"     gradient down, updated parameter up       (K_g + K_p) N/d     states never move
    to="disk"    states read, and written                  2 K_o N/d           masters and moments

N parameters over d ranks, K bytes each by kind (recipe.py); what bandwidth that takes depends on
the seconds of a step in which it should be hidden.
Papers: Ren et al., "ZeRO-Offload", arXiv:2101.06840, section 4; Rajbhandari et al.,
"ZeRO-Infinity", arXiv:2104.07857, section 4.
"""

from __future__ import annotations

from labkit.calc.memory.model_state import count_of
from labkit.calc.memory.recipe import Recipe, recipe_of
from labkit.calc.result import Result, number_of, total
from labkit.calc.traffic.checks import check_above_zero, check_ranks, shown
from labkit.calc.units import number_text


def offload_traffic_bytes(
    num_params: float | Result, recipe: Recipe | str, to: str = "cpu", dp: int = 1
) -> Result:
    """Bytes that one rank moves in an optimizer step, both ways together, by part.

    offload_traffic_bytes(7e9, "zero_paper", to="cpu", dp=8).to("GB") == 3.5
    ValueError for another place than "cpu" or "disk".
    """
    recipe, dp = recipe_of(recipe), check_ranks(dp, "dp")
    share = -(-count_of(num_params) // dp)
    parts = {
        "cpu": {
            "gradients, down": recipe.gradient_bytes,
            "parameters, up": recipe.parameter_bytes,
        },
        "disk": {
            "states, read": recipe.optimizer_bytes,
            "states, written": recipe.optimizer_bytes,
        },
    }
    if not isinstance(to, str) or to not in parts:
        raise ValueError(f'to={shown(to)}: give "cpu" or "disk"')
    return total(
        f"moved by one rank in a step, states on {to}",
        {
            what: Result(
                size * share,
                "bytes",
                what,
                substitution=f"{number_text(size)} B * {share:,}",
            )
            for what, size in parts[to].items()
        },
        formula={"cpu": "(K_g + K_p) N/d", "disk": "2 K_o N/d"}[to],
        convention=f"{recipe.name}; every rank moves its share of the states, as with ZeRO 1 to 3",
        source="ZeRO-Offload, arXiv:2101.06840; ZeRO-Infinity, arXiv:2104.07857",
    )


def offload_bandwidth(
    num_params: float | Result,
    recipe: Recipe | str,
    step_s: float | Result,
    to: str = "cpu",
    dp: int = 1,
) -> Result:
    """Bytes per second that hide the traffic behind a step of `step_s` seconds, of each rank.

    ValueError for a time that is not above 0.
    """
    seconds = number_of(step_s, "step_s", "seconds")
    check_above_zero(seconds, "step_s", "a step takes time, such as 1.5 seconds")
    moved = offload_traffic_bytes(num_params, recipe, to, dp)
    return Result(
        float(moved) / seconds,
        "bytes/s",
        f"bandwidth between a rank and its {to}",
        formula="bytes of a step / seconds of a step",
        substitution=f"{number_text(float(moved))} B / {number_text(seconds)} s",
        convention="all of it hidden behind computing; both ways together",
        source="ZeRO-Infinity, arXiv:2104.07857, section 4",
    )

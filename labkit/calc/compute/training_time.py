"""How well the machine is used, and how long training takes on it.

    MFU    tokens/s * model FLOPs per token / (devices * peak)          no recomputation counted
    HFU    the same with all that was computed, recomputation too
    days   6 T P / (n X)    T tokens, P parameters, n devices, X FLOP/s that each achieves

8, not 6, where activations are recomputed in full: forward twice.
Papers: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B (MFU); Narayanan et al.,
arXiv:2104.04473, equation 4 (days).
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_above_zero, check_ranks
from labkit.calc.compute.flops import RECOMPUTED, training_flops
from labkit.calc.result import Result, number_of
from labkit.calc.units import number_text


def mfu(
    tokens_per_s: float,
    flops_per_token: float | Result,
    num_devices: int,
    peak_flops_per_s: float,
) -> Result:
    """Model FLOPs utilisation: the share of what all devices could compute at their peak.

    flops_per_token: of the model, see `flops_per_token`; or 6 * parameters, as a plain number. Of
    flops_per_token(..., recompute="full") the result is the hardware's utilisation, and called HFU.
    peak_flops_per_s: of one device, in the precision that is used, without sparsity.
    TypeError for a number of parameters, which is none of operations. ValueError for more than the
    peak: then a number is wrong, often the peak or a factor of 2.
    """
    check_above_zero(tokens_per_s, "tokens_per_s", "give the tokens of all devices in a second")
    of_token, is_hardwares = _operations(flops_per_token)
    check_above_zero(of_token, "flops_per_token", "a token takes operations")
    check_above_zero(peak_flops_per_s, "peak_flops_per_s", "give the peak of one device")
    num_devices = check_ranks(num_devices, "num_devices")
    share = tokens_per_s * of_token / (num_devices * peak_flops_per_s)
    if share > 1:
        raise ValueError(
            f"{share:.3g} times the peak: {number_text(tokens_per_s)} tokens/s are more than "
            f"{num_devices} devices can do; is peak_flops_per_s of one device, and dense?"
        )
    return Result(
        share,
        "share",
        "HFU" if is_hardwares else "MFU",
        "tokens/s * FLOPs per token / (n * peak)",
        f"{tokens_per_s:.4g} * {of_token:.4g} / ({num_devices} * {peak_flops_per_s:.4g})",
        convention="dense peak of one device; what is recomputed is "
        + ("counted: the model's own utilisation is lower" if is_hardwares else "not counted"),
        source="Chowdhery et al., arXiv:2204.02311, appendix B",
    )


def _operations(flops_per_token: float | Result) -> tuple[float, bool]:
    """Of a token, and whether some of them are recomputed ones."""
    if not isinstance(flops_per_token, Result):
        return number_of(flops_per_token, "flops_per_token", "FLOP"), False
    if flops_per_token.dimension == "parameters":
        raise TypeError(
            f"flops_per_token={flops_per_token}: parameters are no operations; give "
            "calc.flops_per_token(...), or 6 * parameters as a plain number: "
            "6 * float(calc.num_parameters(...))"
        )
    is_hardwares = RECOMPUTED in flops_per_token.parts
    return number_of(flops_per_token, "flops_per_token", "FLOP"), is_hardwares


def training_days(
    tokens: float,
    num_params: float | Result,
    num_devices: int,
    achieved_flops_per_s: float,
    recompute: str = "none",
) -> Result:
    """Time of training: 6 T P / (n X); recompute="full": 8 T P / (n X), as published.

    achieved_flops_per_s: of one device, as measured, recomputation counted in where there is one.
    round(training_days(300e9, 175e9, 1024, 140e12, "full").to("days"), 1) == 33.9
    TypeError and ValueError as of `training_flops`, and for no number of devices.
    """
    check_above_zero(achieved_flops_per_s, "achieved_flops_per_s", "give what one device achieves")
    num_devices = check_ranks(num_devices, "num_devices")
    work = training_flops(num_params, tokens, recompute)
    factor = work.formula.partition(" ")[0]
    return Result(
        work.value / (num_devices * achieved_flops_per_s),
        "seconds",
        "time of training",
        f"{factor} T P / (n X)",
        f"{factor} * {tokens:.4g} * {float(num_params):.4g} / "
        f"({num_devices} * {achieved_flops_per_s:.4g})",
        convention=f"recompute={recompute!r}; no interruptions",
        source="Narayanan et al., arXiv:2104.04473, equation 4",
    )

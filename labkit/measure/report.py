"""A sweep as text: a line per size and algorithm, then the fits, then the crossovers."""

from labkit.calc.units import bytes_text, seconds_text, size_text
from labkit.measure.fit import link_speed_text
from labkit.measure.measured import Measured


def report(measured: Measured) -> str:
    """Aligned plain text. Where one size was measured there is no fit, and so no model."""
    has_model = len(measured.sizes) > 1
    parts = [_heading(measured), _times(measured, has_model=has_model)]
    if has_model:
        parts += [_fits(measured), _crossovers(measured)]
    return "\n\n".join(part for part in parts if part)


def _heading(measured: Measured) -> str:
    calls = {len(times) for by_size in measured.samples.values() for times in by_size.values()}
    where = f", on {measured.topology}" if measured.topology is not None else ""
    return (
        f"all-reduce of float32 on {measured.world_size} ranks, medians of "
        f"{'/'.join(map(str, sorted(calls)))} calls that took turns{where}"
    )


def _times(measured: Measured, *, has_model: bool) -> str:
    rows = [["size", "algorithm", "time", "algbw", "busbw", "model", "residual"]]
    for nbytes in measured.sizes:
        for number, one in enumerate(measured.algorithms):
            seconds = measured.seconds[one.name][nbytes]
            row = [
                "" if number else size_text(nbytes),
                one.name,
                seconds_text(seconds),
                f"{bytes_text(measured.algbw[one.name][nbytes])}/s",
                f"{bytes_text(measured.busbw[one.name][nbytes])}/s",
            ]
            if has_model:
                predicted = measured.predicted[one.name][nbytes]
                row += [seconds_text(predicted), f"{(seconds - predicted) / seconds:+.0%}"]
            rows.append(row)
    return aligned([row[: 7 if has_model else 5] for row in rows])


def _fits(measured: Measured) -> str:
    rows = [["", "alpha", "1 / beta", "R2", "worst residual"]]
    for name, fit in measured.fits.items():
        rows.append(
            [
                name,
                seconds_text(fit.alpha),
                link_speed_text(fit.beta),
                f"{fit.r2:.3f}",
                f"{fit.worst_residual:+.0%}",
            ]
        )
    return aligned(rows, left=1)


def _crossovers(measured: Measured) -> str:
    rows = [["faster below", "above", "measured", "by the model"]]
    for each in measured.crossovers:
        sizes = [
            "–" if at is None else bytes_text(at)
            for at in (each.measured_bytes, each.predicted_bytes)
        ]
        rows.append([each.small, each.large, *sizes])
    return aligned(rows) if len(rows) > 1 else ""


def aligned(rows: list[list[str]], left: int = 2) -> str:
    """Columns of equal width; the first `left` of them flush left, numbers flush right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )

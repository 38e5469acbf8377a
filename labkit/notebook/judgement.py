"""The trial of a claim: exhibits, calculated and measured, and the verdict that they make.

judge("gpipe-10-4")         verdict and vote, exhibits, what is true, what was confused with what
"""

from html import escape

from labkit.grade.ink import ink
from labkit.interview.court import VERDICTS, Claim, Finding, findings, record
from labkit.notebook.claims_court import claim_of, record_verdict, vote_on
from labkit.notebook.proofs import proofs_html
from labkit.notebook.shown import BORDER, FAINT, Shown, box

_RIGHT, _WRONG, _OTHER = "#009e73", "#d55e00", "#0072b2"
_HEADING = ("exhibit", "claimed", "calculated", "measured", "borne out")


def judge(key: str, *, measure: bool = True, anew: bool = False) -> Shown:
    """The trial of a claim. KeyError names the claims that there are.

    measure: whether the runs are made that its exhibits ask for; each once in a process. Times are
    marked with ~, and come from the court's record. anew: they are measured on this machine.
    """
    claim = claim_of(key)
    found = findings(claim, measure=measure, anew=anew)
    record_verdict(claim)
    notes = [*_origin(key, found, anew), *_doubts(found)]
    return Shown(_text(claim, found, notes), _html(claim, found, notes))


def _verdict_text(claim: Claim) -> str:
    return f"Verdict: {claim.verdict} ({VERDICTS[claim.verdict].meaning})."


def _vote_text(claim: Claim) -> str:
    voted = vote_on(claim.key)
    if voted is None:
        return "You did not vote."
    return f"You voted {voted!r}{', and so does the court' if voted == claim.verdict else ''}."


def _origin(key: str, found: list[Finding], anew: bool) -> list[str]:
    """Where the times come from."""
    if anew or not any(each.exhibit.within and each.measured is not None for each in found):
        return []
    kept = record()
    return [
        f"(~: times recorded on {kept.date} on {kept.machine}. Here and now: "
        f"judge({key!r}, anew=True).)"
    ]


def _doubts(found: list[Finding]) -> list[str]:
    """What to think of runs that did not measure what was predicted."""
    far = [each for each in found if not each.agrees]
    if not far:
        return []
    shows = ", ".join(repr(each.exhibit.shows) for each in far)
    if all(each.exhibit.within for each in far):
        return [f"(This machine is busy: {shows} took longer than it should. Run it again later.)"]
    return [f"(The run contradicts the calculation of {shows}. One of them is wrong: say so.)"]


def _cells(found: list[Finding]) -> list[tuple[str, ...]]:
    return [
        (
            each.exhibit.shows,
            each.exhibit.claimed,
            each.found_text or "–",
            each.measured_text or "–",
            "yes" if each.stands else "no",
        )
        for each in found
    ]


def _text(claim: Claim, found: list[Finding], notes: list[str]) -> str:
    cells = [_HEADING, *_cells(found)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADING))]
    lines = [
        row[0].ljust(widths[0])
        + "".join(f"   {cell.rjust(width)}" for cell, width in zip(row[1:], widths[1:]))
        for row in cells
    ]
    return "\n".join(
        [
            f"{_verdict_text(claim)} {_vote_text(claim)}",
            *lines,
            *notes,
            f"What is true. {claim.truth}",
            f"What was confused. {claim.confusion}",
        ]
    )


def _html(claim: Claim, found: list[Finding], notes: list[str]) -> str:
    stands = VERDICTS[claim.verdict].stands
    colour = {frozenset({True}): _RIGHT, frozenset({False}): _WRONG}.get(stands, _OTHER)
    measured = [(each.shows, each.run) for each in claim.exhibits if each.run]
    parts = [
        f'<div><b style="color: {ink(colour)};">{escape(_verdict_text(claim))}</b> '
        f'<span style="color: {FAINT};">{escape(_vote_text(claim))}</span></div>',
        _table(found),
        *(f'<div style="color: {FAINT};">{escape(each)}</div>' for each in notes),
        f'<p style="margin: 6px 0;"><b>What is true.</b> {escape(claim.truth)}</p>',
        f'<p style="margin: 6px 0;"><b>What was confused.</b> {escape(claim.confusion)}</p>',
        f'<details style="color: {FAINT};"><summary>where the numbers come from</summary>'
        f"{proofs_html(claim.evidence, claim.sources, measured)}</details>",
    ]
    return box("".join(parts), colour).replace("max-width: 46em", "max-width: 56em")


def _table(found: list[Finding]) -> str:
    side = {0: "left", 4: "center"}
    cell = "padding: 3px 12px 3px 4px; vertical-align: top; font-variant-numeric: tabular-nums;"
    head = "".join(
        f'<th style="{cell} text-align: {side.get(column, "right")}; color: {FAINT};">{title}</th>'
        for column, title in enumerate(_HEADING)
    )
    rows = [f'<tr style="border-bottom: 1px solid {BORDER};">{head}</tr>']
    for row in _cells(found):
        columns = "".join(
            f'<td style="{cell} text-align: {side.get(column, "right")};'
            f'{_ink(column, row[4])}">{escape(text)}</td>'
            for column, text in enumerate(row)
        )
        rows.append(f"<tr>{columns}</tr>")
    return f'<table style="border-collapse: collapse; margin: 6px 0;">{"".join(rows)}</table>'


def _ink(column: int, borne_out: str) -> str:
    if column != len(_HEADING) - 1:
        return ""
    return f" font-weight: 600; color: {ink(_RIGHT if borne_out == 'yes' else _WRONG)};"

"""The claims court: vote on a claim, then see exhibits, calculated and measured, and the verdict.

vote("gpipe-10-4")          the claim as it circulates, and a button for each verdict
judge("gpipe-10-4")         verdict and vote, exhibits, the truth, the confusion
docket()                    all claims: how the reader voted, and how the court did

Static forms (on a page without a kernel) show the claim and the possible verdicts.
"""

from collections.abc import Iterable, Sequence
from html import escape

import ipywidgets as widgets

from labkit import progress
from labkit.grade.verdict import ink
from labkit.interview.cards import Evidence
from labkit.interview.court import VERDICTS, Claim, Finding, findings, load_claims, record
from labkit.interview.court import Evidence as EvidenceOfClaim
from labkit.interview.evidence import can_run
from labkit.notebook.shown import BORDER, FAINT, Shown, WithWidget, box, run_it
from labkit.progress import clock, practice

_KIND = "vote"
# Votes of this process, for a reader whose disk is full or read-only.
_unsaved: dict[str, str] = {}


class Vote(WithWidget):
    """The box that `vote` shows. `choose(verdict)` does what its buttons do."""

    def __init__(self, claim: Claim) -> None:
        """See `vote`."""
        self.claim = claim
        self._buttons = widgets.ToggleButtons(
            options=[(name, name) for name in VERDICTS],
            value=None if is_asked_again(claim.key) else vote_on(claim.key),
            tooltips=[each.meaning for each in VERDICTS.values()],
            description="Your vote",
            style={"button_width": "auto", "description_width": "initial"},
        )
        self._status = widgets.HTML()
        self._say()
        self._buttons.observe(lambda change: self.choose(change["new"]), names="value")
        self._widget = widgets.VBox(
            [widgets.HTML(_claim_html(claim)), self._buttons, self._status],
            layout={"border_left": "4px solid #0072b2", "padding": "2px 12px"},
        )

    def choose(self, verdict: str) -> str:
        """Vote, or vote again; returns what the box then says. ValueError for no verdict."""
        if verdict not in VERDICTS:
            raise ValueError(f"{verdict!r} is no verdict; vote one of {', '.join(VERDICTS)}")
        if verdict != vote_on(self.claim.key) or is_asked_again(self.claim.key):
            _unsaved.pop(self.claim.key, None)
            progress.record(_KIND, self.claim.key, verdict=verdict)
            if vote_on(self.claim.key) != verdict:  # `record` warns, and this session goes on
                _unsaved[self.claim.key] = verdict
        self._buttons.value = verdict
        return self._say()

    def _say(self) -> str:
        verdict = None if is_asked_again(self.claim.key) else vote_on(self.claim.key)
        message = f"You say: {verdict} ({VERDICTS[verdict].meaning})." if verdict else "Your vote?"
        self._status.value = f'<span style="color: {FAINT}">{escape(message)}</span>'
        return message

    def __repr__(self) -> str:
        return f"Claim. {self.claim.claim}\nYour vote? {' / '.join(VERDICTS)}"

    def _static_html(self) -> str:
        return box(_claim_html(self.claim) + run_it(f"vote: {' / '.join(VERDICTS)}"))


def vote(key: str) -> Vote:
    """Show a claim and the verdicts to choose from, as the last line of a cell.

    Tab and Enter reach every button. A vote is kept, on disk, from session to session; who votes
    again has changed their mind. Once the court has judged it, it counts as practice, and when the
    claim is due again, it is open again. KeyError lists the claims.
    """
    return Vote(claim_of(key))


def docket() -> Shown:
    """Show every claim with the reader's vote and, where there is one, the court's verdict."""
    rows = [(each.claim, vote_on(key) or "", each.verdict) for key, each in load_claims().items()]
    agreed = sum(vote == verdict for _, vote, verdict in rows)
    cast = sum(bool(vote) for _, vote, _ in rows)
    said = f"{len(rows)} claims; you voted on {cast}, and on {agreed} of them as the court did."
    open_rows = [(claim, vote, verdict if vote else "") for claim, vote, verdict in rows]
    lines = [f"{court:16} {vote or '(no vote)':16} {claim}" for claim, vote, court in open_rows]
    heading = "".join(_cell(each, "th") for each in ("the claim", "your vote", "the court"))
    body = "".join(
        f"<tr>{_cell(claim, wraps=True)}{_cell(vote or '–')}{_cell(court or '–', bold=True)}</tr>"
        for claim, vote, court in open_rows
    )
    table = f'<table style="border-collapse: collapse;"><tr>{heading}</tr>{body}</table>'
    return Shown("\n".join([said, *lines]), box(f"<div>{escape(said)}</div>{table}"))


def vote_on(key: str) -> str | None:
    """Return the reader's last vote, in any session, or None."""
    if key in _unsaved:
        return _unsaved[key]
    events = progress.events(key, _KIND)
    verdict = events[-1].detail.get("verdict") if events else None
    return verdict if verdict in VERDICTS else None


def is_asked_again(key: str) -> bool:
    """Return whether the claim is due, and there is no vote since the court judged the last one."""
    known = practice.state(f"claim/{key}")
    if known is None or known.due_s > clock.now_s() or key in _unsaved:
        return False
    return all(event.at_s <= known.last_s for event in progress.events(key, _KIND))


def record_verdict(claim: Claim) -> None:
    """Count the reader's vote as practice, once, when the court has judged."""
    vote = vote_on(claim.key)
    if vote is not None and claim.key not in _unsaved:
        practice.record_tried(claim.key, right=vote == claim.verdict)


def claim_of(key: str) -> Claim:
    """Return the claim of this key. KeyError lists the keys."""
    claims = load_claims()
    if key not in claims:
        raise KeyError(f"{key!r} is not on trial; the claims are {', '.join(claims)}")
    return claims[key]


def _claim_html(claim: Claim) -> str:
    quote = "margin: 2px 0 8px 0; font-size: 1.05em; font-style: italic;"
    return f'<b>The claim.</b><div style="{quote}">{escape(claim.claim)}</div>'


def _cell(text: str, tag: str = "td", *, bold: bool = False, wraps: bool = False) -> str:
    weight = "font-weight: 600;" if bold or tag == "th" else ""
    weight += "" if wraps else " white-space: nowrap;"
    style = f"text-align: left; padding: 3px 14px 3px 4px; vertical-align: top; {weight}"
    return f'<{tag} style="{style}">{escape(text)}</{tag}>'


def proofs_html(
    evidence: Sequence[Evidence | EvidenceOfClaim],
    sources: Iterable[str],
    measured: Iterable[tuple[str, str]] = (),
) -> str:
    """Return proofs, publications, measurements (what, by which expression) and sources.

    What labkit cannot prove yet is named as pending.
    """
    lines = [
        f"<li>{escape(item.says)}: <code>{escape(item.proof)}</code></li>"
        if item.proof
        else f"<li>{escape(item.says)}: {escape(item.source)}</li>"
        for item in evidence
        if not item.pending
    ]
    lines += [
        f"<li>{escape(shows)}, measured: <code>{escape(run)}</code></li>" for shows, run in measured
    ]
    lines += [f"<li>pending: {escape(item.pending)}</li>" for item in evidence if item.pending]
    lines.append(f"<li>sources: {escape('; '.join(sources))}</li>")
    return f'<ul style="margin: 2px 0;">{"".join(lines)}</ul>'


_RIGHT, _WRONG, _OTHER = "#009e73", "#d55e00", "#0072b2"
_HEADING = ("exhibit", "claimed", "calculated", "measured", "borne out")


def judge(key: str, *, measure: bool = True, remeasure: bool = False) -> Shown:
    """Show the trial of a claim. KeyError lists the claims.

    measure: whether the runs are made that its exhibits ask for; each once in a process. Times are
    marked with ~, and come from the court's record. `remeasure=True` measures them on this machine.
    Without torch there are no runs, and it says so.
    """
    claim = claim_of(key)
    found = findings(claim, measure=measure, remeasure=remeasure)
    record_verdict(claim)
    notes = [*_origin(key, found, remeasure), *_doubts(found), *_without_runs(claim)]
    return Shown(_text(claim, found, notes), _html(claim, found, notes))


def _verdict_text(claim: Claim) -> str:
    return f"Verdict: {claim.verdict} ({VERDICTS[claim.verdict].meaning})."


def _vote_text(claim: Claim) -> str:
    voted = vote_on(claim.key)
    if voted is None:
        return "You did not vote."
    return f"You voted {voted!r}{', and so does the court' if voted == claim.verdict else ''}."


def _origin(key: str, found: list[Finding], remeasure: bool) -> list[str]:
    """Say where the times come from."""
    if remeasure or not any(each.exhibit.within and each.measured is not None for each in found):
        return []
    kept = record()
    return [
        f"(~: times recorded on {kept.date} on {kept.machine}. Here and now: "
        f"judge({key!r}, remeasure=True).)"
    ]


def _doubts(found: list[Finding]) -> list[str]:
    """Say what to think of runs that did not measure what was predicted."""
    far = [each for each in found if not each.agrees]
    if not far:
        return []
    shows = ", ".join(repr(each.exhibit.shows) for each in far)
    if all(each.exhibit.within for each in far):
        return [f"(This machine is busy: {shows} took longer than it should. Run it again later.)"]
    return [f"(The run contradicts the calculation of {shows}. One of them is wrong: say so.)"]


def _without_runs(claim: Claim) -> list[str]:
    """Say that runs are missing, where they cannot be made."""
    if can_run() or not any(each.is_measured for each in claim.exhibits):
        return []
    return ["(What real runs measure is left out: they need torch, which is not installed here.)"]


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
    cells = [_HEADING, *_cells(found)] if found else []
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(5)]
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
        _table(found) if found else "",
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

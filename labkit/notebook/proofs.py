"""Where the numbers of a text come from: each with its expression or its paper."""

from collections.abc import Iterable, Sequence
from html import escape

from labkit.interview.cards import Evidence
from labkit.interview.court.claim import Evidence as EvidenceOfClaim


def proofs_html(
    evidence: Sequence[Evidence | EvidenceOfClaim],
    sources: Iterable[str],
    measured: Iterable[tuple[str, str]] = (),
) -> str:
    """What is proved, what was published, what was measured (what, by which expression), sources.

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

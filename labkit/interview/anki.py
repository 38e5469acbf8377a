"""Write the question cards as a file for Anki, whose File > Import needs no settings.

    #separator:tab  #html:true  #notetype:Basic  #deck:...  #guid column:1  #tags column:4
    labkit-co-8 <tab> prompt <tab> answer, rubric, mistake, sources, in HTML <tab> tags

Every card keeps its guid, so that importing a later file updates notes and keeps their history in
Anki. Format: Anki's manual, "Importing text files", file headers.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from labkit.interview.cards import Card, load_topics
from labkit.interview.page import follow_up_html, html_of
from labkit.progress.exchange import write_whole

DECK = "Distributed training"
_HEADERS = (
    "#separator:tab",
    "#html:true",
    "#notetype:Basic",
    f"#deck:{DECK}",
    "#guid column:1",
    "#tags column:4",
)


def anki_text(cards: Iterable[Card]) -> str:
    """Return the text of the whole file."""
    return "\n".join([*_HEADERS, *map(_note, cards), ""])


def export_anki(path: Path, cards: Iterable[Card]) -> int:
    """Write the file atomically. Returns the number of notes. Raises OSError."""
    chosen = list(cards)
    write_whole(path, anki_text(chosen))
    return len(chosen)


def _note(card: Card) -> str:
    topic = load_topics()[card.topic]
    fields = (
        f"labkit-{card.id}",
        escape(card.prompt),
        _back(card),
        f"labkit::{topic.subject}::{card.id} {card.level}",
    )
    return "\t".join(map(_on_a_line, fields))


def _back(card: Card) -> str:
    points = "".join(f"<li>{escape(each)}</li>" for each in card.rubric)
    follow_ups = "".join(f"<li>{follow_up_html(each)}</li>" for each in card.follow_ups)
    sources = "<br>".join(map(escape, card.sources))
    return (
        f"{html_of(card.minute)}<hr><p><b>Listened for</b></p><ol>{points}</ol>"
        f"<details><summary><b>Deeper</b></summary>{html_of(card.deeper)}</details>"
        f"<details><summary><b>The common mistake</b></summary>{html_of(card.mistake)}</details>"
        f"<details><summary><b>They may ask next</b></summary><ul>{follow_ups}</ul></details>"
        f"<p><small>{sources}</small></p>"
    )


def _on_a_line(field: str) -> str:
    """Remove line breaks and tabs, since a note is a line and a field ends at a tab."""
    return field.replace("\t", "    ").replace("\r", "").replace("\n", " ")

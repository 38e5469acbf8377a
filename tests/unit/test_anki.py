"""The file for Anki: headers, one note a line, stable guids, HTML that is whole."""

import html.parser
import sys

import pytest

from labkit import cli
from labkit.interview.anki import anki_text, export_anki
from labkit.interview.cards import load_bank

BANK = load_bank()
CARDS = list(BANK.values())


def notes(text):
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def test_headers_say_what_anki_would_ask():
    headers = dict(
        line[1:].split(":", 1) for line in anki_text(CARDS).splitlines() if line[0] == "#"
    )
    assert headers["separator"] == "tab" and headers["html"] == "true"
    assert headers["guid column"] == "1" and headers["tags column"] == "4"


def test_every_card_is_one_line_of_four_fields_and_keeps_its_guid():
    found = notes(anki_text(CARDS))
    assert [len(note) for note in found] == [4] * len(CARDS)
    assert [note[0] for note in found] == [f"labkit-{card.id}" for card in CARDS]
    assert len({note[0] for note in found}) == len(CARDS)


class Balanced(html.parser.HTMLParser):
    """Raises where a tag is closed that is not open."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.text = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.id)
def test_a_note_is_whole_html_with_all_of_the_answer(card):
    (note,) = notes(anki_text([card]))
    page = Balanced()
    page.feed(note[2])
    page.close()
    assert page.open == []
    said = " ".join("".join(page.text).split())
    for point in (*card.rubric, *(each.question for each in card.follow_ups), *card.sources):
        assert " ".join(point.split()) in said
    assert "|---" not in note[2], "a table is drawn as one"


def test_what_html_would_take_for_tags_is_escaped():
    (note,) = notes(anki_text([_with(BANK["co-8"], prompt="Is a < b & c?\tand\nd")]))
    assert note[1] == "Is a &lt; b &amp; c?    and d"


def _with(card, **changes):
    import dataclasses

    return dataclasses.replace(card, **changes)


def test_the_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "cards.txt"
    assert export_anki(path, CARDS) == len(CARDS)
    before = path.read_text(encoding="utf-8")
    assert before == anki_text(CARDS)
    monkeypatch.setattr("labkit.interview.anki.anki_text", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_anki(path, CARDS)
    assert path.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


def test_from_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    for words, status in (
        (("export", "--anki", str(tmp_path / "a.txt")), 0),
        (("export",), 2),
        (("export", "--anki", str(tmp_path / "nowhere" / "a.txt")), 2),
    ):
        monkeypatch.setattr(sys, "argv", ["labkit", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == status, capsys.readouterr()
    assert len(notes((tmp_path / "a.txt").read_text(encoding="utf-8"))) == len(CARDS)

"""Prompts and chats as bytes; the text of an answer that comes token by token."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.serving.byte_text import END, TextStream, encode, encode_chat


def parts_of(content, stops=()):
    """The parts of an answer of these bytes, until it stops, and whether it did."""
    stream, parts = TextStream(stops), []
    for i, token in enumerate(content):
        parts.append(stream.push(token, is_last=i == len(content) - 1))
        if stream.is_stopped:
            break
    return parts, stream.is_stopped


def test_a_chat_is_bytes_that_no_text_has_between_its_turns():
    assert encode_chat([("system", "S"), ("user", "né")]) == [
        *(0xF8, ord("S"), 0xFF),
        *(0xF9, ord("n"), 0xC3, 0xA9, 0xFF),
        0xFA,
    ]
    assert max(chr(sys.maxunicode).encode()) < 0xF8


def test_an_empty_prompt_begins_a_text():
    assert encode("") == [END]


@pytest.mark.parametrize(
    ("content", "stops", "parts", "is_stopped"),
    [
        ("aé€".encode(), [], ["a", "", "é", "", "", "€"], False),
        (b"aENTEND", ["END"], ["a", "", "", "ENT", "", "", ""], True),
        (b"aEN", ["END"], ["a", "", "EN"], False),  # the last token holds nothing back
        (b"ab", ["b", "ab"], ["", ""], True),  # the one that begins first
        (b"aab", ["ab"], ["", "a", ""], True),
        ("xé".encode(), ["é"], ["x", "", ""], True),
        (b"a\xc3", [], ["a", "\ufffd"], False),
        (b"a\xc3b\x80", [], ["a", "", "\ufffdb", "\ufffd"], False),
        (b"aE\xff", ["END"], ["a", "", "E"], False),
    ],
)
def test_text_is_held_back_while_it_may_be_part_of_something(content, stops, parts, is_stopped):
    assert parts_of(content, stops) == (parts, is_stopped)


@given(
    st.lists(st.sampled_from([*b"ab", *"é€😀".encode(), 0xFE]), min_size=1, max_size=30).map(bytes),
    st.lists(st.text("abé€", min_size=1, max_size=3), max_size=4),
)
def test_the_parts_are_the_whole_text_before_the_first_stop_string(content, stops):
    parts, is_stopped = parts_of(content, stops)
    # The text after each token for a reader who decodes everything that has arrived.
    for num_tokens in range(1, len(content) + 1):
        text = content[:num_tokens].decode(errors="replace")
        if num_tokens < len(content):
            text = text.rstrip("\ufffd")  # perhaps a character's beginning
        if found := [text.find(stop) for stop in stops if stop in text]:
            assert (is_stopped, len(parts)) == (True, num_tokens)
            assert "".join(parts) == text[: min(found)]
            return
    assert not is_stopped
    assert "".join(parts) == content.decode(errors="replace")

"""What `labkit watch` asks of a terminal: keys one by one, signals to read, lines that fit."""

import contextlib
import os
import signal
import termios

import pytest

from labkit.cli.watching.keyboard import END, Keyboard
from labkit.cli.watching.screen import KEYS, keys_lines
from labkit.cli.watching.signals import Signals


@pytest.fixture
def terminal():
    """Both ends of a pseudo-terminal: ours, and the program's."""
    ours, theirs = os.openpty()
    yield ours, theirs
    for descriptor in (ours, theirs):
        with contextlib.suppress(OSError):  # a test has closed it
            os.close(descriptor)


def is_by_line(descriptor):
    return bool(termios.tcgetattr(descriptor)[3] & termios.ICANON)


def test_keys_come_without_enter(terminal):
    ours, theirs = terminal
    with Keyboard(theirs) as keyboard:
        os.write(ours, b"hQ")
        assert keyboard.read() == "hq"


ARROWS_AND_THE_LIKE = [b"\x1b[A", b"\x1b[15~", b"\x1b[1;5C", b"\x1bOP", b"\x1bq"]


@pytest.mark.parametrize("several", ARROWS_AND_THE_LIKE)
def test_an_arrow_is_no_letter_and_the_key_after_it_is(terminal, several):
    ours, theirs = terminal
    with Keyboard(theirs) as keyboard:
        os.write(ours, several)
        assert keyboard.read() == ""
        os.write(ours, b"h" + several + b"e")
        assert keyboard.read() == "he"


def test_the_terminal_is_as_before_also_after_an_exception(terminal):
    _, theirs = terminal
    before = termios.tcgetattr(theirs)
    with pytest.raises(ZeroDivisionError), Keyboard(theirs):
        assert not is_by_line(theirs)
        raise ZeroDivisionError
    assert termios.tcgetattr(theirs) == before and is_by_line(theirs)


def test_keys_that_nobody_read_are_not_left_to_the_shell(terminal):
    ours, theirs = terminal
    with Keyboard(theirs):
        os.write(ours, b"rm\n")
    os.set_blocking(theirs, False)
    with pytest.raises(BlockingIOError):
        os.read(theirs, 100)


def test_a_terminal_that_is_closed_ends_the_keys_and_can_be_left(terminal):
    ours, theirs = terminal
    with Keyboard(theirs) as keyboard:
        assert not keyboard.is_gone
        os.close(ours)
        assert keyboard.read() == END
        assert keyboard.is_gone


def test_signals_are_read_and_go_back_to_their_handlers():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with Signals() as signals:
            assert signals.take() == []
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert sorted(signals.take()) == [signal.SIGINT, signal.SIGTERM]
        assert seen == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("width", [20, 60, 79, 80, 100])
def test_the_keys_fit_and_none_is_cut_in_two(width):
    lines = [line.plain for line in keys_lines(width)]
    assert all(len(line) <= width for line in lines)
    told = [word for line in lines for word in line.split("  ")]
    assert told == [f"{key} {meaning}" for key, meaning in KEYS.items()]
    assert len(lines) == {20: 5, 60: 2, 79: 1, 80: 1, 100: 1}[width]

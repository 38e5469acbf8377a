"""The lab's own messages fit on a page."""

from labkit.launch.notes import print_note


def test_a_line_ends_with_a_page_and_a_command_stays_whole(capsys):
    print_note("rank 1 is stopped; " * 4 + "`kill -CONT 4711` lets it go on")
    printed = capsys.readouterr().out
    first, second = printed.splitlines()
    assert first.startswith("[labkit] rank 1") and len(first) <= 96
    assert second.startswith("`kill -CONT 4711` lets")

"""examples/kills.py, with two kills: of a rank, and of a host."""

import pytest
from test_two_hosts import two_hosts_can_be_made  # noqa: F401  (a fixture)

from tests.an_example import load_example

pytestmark = pytest.mark.usefixtures("two_hosts_can_be_made")
kills = load_example("kills")


def test_a_training_through_kills_of_ranks_and_hosts_ends_like_one_without(capsys):
    assert kills.report(2), capsys.readouterr().out


def test_hosts_that_were_made_in_part_are_removed(tmp_path, monkeypatch):
    """Ctrl-C when the second is made."""
    right, ip = kills.NAMESPACES["right"], kills.ip

    def interrupted(*words):
        if words == ("netns", "add", right):
            raise KeyboardInterrupt
        return ip(*words)

    monkeypatch.setattr(kills, "ip", interrupted)
    with pytest.raises(KeyboardInterrupt), kills.Hosts(tmp_path, 1):
        pass
    assert not [line for line in ip("netns").split() if line in kills.NAMESPACES.values()]

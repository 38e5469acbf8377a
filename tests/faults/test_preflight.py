"""Faults switched on in real ranks: the preflight names the rank or the pair, and nothing else."""

import errno
import json
import os
import sys
import time
from unittest import mock

import pytest
import torch

import labkit
from labkit import Link, Topology, cli, measure

pytestmark = [pytest.mark.alone, pytest.mark.clock]

NETWORK = Topology(hosts=1, ranks_per_host=4, fast=Link(50e6, 100e-6))
OFF_S, STEP_S = 7.0, 3.0
multiply, send, wall_clock, fsync = torch.mm, labkit.Group.send, time.time, os.fsync


def healthy(world):
    with mock.patch("labkit.measure.preflight_checks._BLOCKS", 1):
        # Four ranks share two cores: of a few products the median is not yet the same on all.
        return measure.preflight(world, burn_in_s=0.5)


def flips_bits(calls):
    """One bit each: call 3 flips the lowest one of a zero, call 4 doubles or halves a two."""

    def corrupted(a, b):
        product = multiply(a, b)
        calls.append(1)
        if bit := {3: 1, 4: 1 << 23}.get(len(calls)):
            value = 0 if bit == 1 else 2
            row, column = (product == value).nonzero()[0].tolist()
            product.view(torch.int32)[row, column] ^= bit
        return product

    return corrupted


def corrupted_and_late(world):
    """Rank 1 computes wrongly; rank 3's clock is wrong, and set once more meanwhile."""
    calls = []
    patches = {1: ("torch.mm", flips_bits(calls))}

    def clock():
        return wall_clock() + OFF_S + STEP_S * bool(calls)

    if world.rank == 3:
        with (
            mock.patch("torch.mm", lambda a, b: calls.append(1) or multiply(a, b)),
            mock.patch("time.time", clock),
        ):
            return healthy(world)
    with mock.patch(*patches.get(world.rank, ("torch.mm", multiply))):
        return healthy(world)


def slow_on_two_hosts(world):
    """Host b's disk and rank 3's processor are slow, and so are messages from rank 0 to rank 2."""

    def slow_send(group, x, dst):
        if (group.rank, dst) == (0, 2) and x.nbytes > 1000:
            time.sleep(0.05)
        send(group, x, dst)

    def slow_multiply(a, b):
        time.sleep(0.2 * (world.rank == 3))
        return multiply(a, b)

    def slow_fsync(descriptor):
        time.sleep(0.6 * (world.rank == 2))
        fsync(descriptor)

    with (
        mock.patch("socket.gethostname", lambda: "ab"[world.rank // 2]),
        mock.patch.object(labkit.Group, "send", slow_send),
        mock.patch("torch.mm", slow_multiply),
        mock.patch("os.fsync", slow_fsync),
    ):
        return healthy(world)


def found(checked):
    return {(each.check, each.ranks): each for each in checked.findings}


def test_healthy_ranks_have_no_finding_and_one_clock():
    values = labkit.run(healthy, 4, topology=NETWORK).values
    checked = values[0]
    assert checked.is_ready and checked.findings == [], checked.table()
    assert all(each == checked for each in values)
    assert len(checked.links) == 6
    assert all(0.5 < each / 50e6 < 1.05 for each in checked.links.values())
    for each in checked.ranks:
        assert abs(each.clock_s) <= each.clock_uncertainty_s < 0.05
        assert each.num_products >= 4 and each.flops_per_s > 1e8
    assert [each.free_bytes is None for each in checked.ranks] == [False, True, True, True]


def test_a_slow_link_wrong_products_and_clocks_are_named_by_rank():
    topology = NETWORK.degraded("rank 2", 0.2)
    checked = labkit.run(corrupted_and_late, 4, topology=topology).values[0]
    faults = found(checked)
    assert faults.keys() == {
        ("link", (2,)),
        ("product", (1,)),
        ("clock", (3,)),
        ("clock step", (3,)),
    }, checked.table()
    link, product = faults["link", (2,)], faults["product", (1,)]
    assert 0.6 * 10e6 < link.measured < 10e6 < link.expected < 50e6 / 2
    number, row, column, got, exact = checked.ranks[1].first_wrong
    assert (number, row, checked.ranks[1].num_wrong) == (3, 0, 2)
    assert (product.measured, product.expected) == (got, exact) == (2**-149, 0)
    assert f"row 0, column {column} of product 3" in product.note
    assert faults["clock", (3,)].measured == pytest.approx(OFF_S + STEP_S, abs=0.1)
    assert faults["clock step", (3,)].measured == pytest.approx(STEP_S, abs=0.1)
    assert "product, rank 1: " in checked.table()


def test_a_slow_pair_processor_and_disk_of_two_hosts_are_named():
    checked = labkit.run(slow_on_two_hosts, 4, topology=NETWORK).values[0]
    faults = found(checked)
    assert faults.keys() == {("link", (0, 2)), ("speed", (3,)), ("disk", (2,))}, checked.table()
    assert faults["disk", (2,)].measured < 7e6
    assert [each.host for each in checked.ranks] == ["a", "a", "b", "b"]
    assert [each.free_bytes is None for each in checked.ranks] == [False, True, False, True]


def command(monkeypatch, capsys, *words):
    """The exit status and what `labkit preflight` prints."""
    monkeypatch.setattr(sys, "argv", ["labkit", "preflight", "--ranks", "2", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0, capsys.readouterr().out


def test_the_command_prints_figures_for_programs(monkeypatch, capsys, tmp_path):
    words = ("--burn-in", "0.2", "--folder", str(tmp_path), "--json")
    status, out = command(monkeypatch, capsys, *words)
    figures = json.loads(out)
    assert (status, figures["is_ready"], figures["findings"]) == (0, True, []), out
    assert [each["num_wrong"] for each in figures["ranks"]] == [0, 0]
    assert figures["links"][0][:2] == [0, 1]
    assert list(tmp_path.iterdir()) == []


def checks_folders(world, folders):
    """With a disk that has no room in the last of them."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    found = []
    for folder in folders:
        with mock.patch("os.fsync", full if folder is folders[-1] else fsync):
            found.append(measure.preflight(world, folder, burn_in_s=0, free_bytes=0))
    return found


def test_a_folder_that_cannot_be_written_into_is_a_finding_with_its_reason(tmp_path):
    file, full = tmp_path / "file", tmp_path / "full"
    file.touch(), full.mkdir()
    folders = [tmp_path / "missing", file, full]
    reasons = errno.ENOENT, errno.ENOTDIR, errno.ENOSPC
    checked = labkit.run(checks_folders, 2, (folders,)).values[0]
    for each, folder, reason in zip(checked, folders, reasons, strict=True):
        # On a busy machine another check may find something too.
        (finding,) = [found for found in each.findings if found.check == "disk"]
        assert (finding.ranks, finding.measured) == ((0,), 0)
        assert finding.note == f"{os.strerror(reason)}: {folder}"
    assert checked[2].ranks[0].free_bytes > 0 and list(full.iterdir()) == []


def test_the_command_fails_where_the_folder_is_missing_or_full(monkeypatch, capsys, tmp_path):
    folder = str(tmp_path / "missing")
    status, out = command(monkeypatch, capsys, "--burn-in", "0", "--folder", folder)
    assert status == 1 and "disk, rank 0: 0 B/s" in out and folder in out
    monkeypatch.chdir(tmp_path)
    words = ("--burn-in", "0", "--folder", ".", "--free", "1000000 TB")
    status, out = command(monkeypatch, capsys, *words)
    assert status == 1 and "space, rank 0" in out and "not ready" in out
    assert command(monkeypatch, capsys, "--free", "3 s")[0] == 2

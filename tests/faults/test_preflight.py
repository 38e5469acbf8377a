"""Faults switched on in real ranks are measured; of given figures the preflight names what is slow.

Which rank is slow beside others is asserted on figures that a test gives. Of real ranks there are
facts that no busy machine changes: wrong products, clocks that were set, and the least that
something takes.
"""

import dataclasses
import errno
import json
import os
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import labkit
from labkit import Link, Topology, cli, measure
from labkit.checkpoint.disk import BLOCK
from labkit.measure import preflight_checks
from labkit.measure.preflight_checks import Finding, Preflight, RankCheck

NETWORK = Topology(hosts=1, ranks_per_host=4, fast=Link(50e6, 100e-6))
OFF_S, STEP_S = 7.0, 3.0
multiply, send, wall_clock, fsync = torch.mm, labkit.Group.send, time.time, os.fsync


def healthy(world):
    with mock.patch("labkit.measure.preflight_checks._BLOCKS", 1):
        return measure.preflight(world, burn_in_s=0.1)


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


MESSAGE_BYTES = 2**18


def test_all_ranks_have_the_same_figures_and_their_clocks_agree():
    values = labkit.run(healthy, 4, topology=NETWORK).values
    checked = values[0]
    assert all(each == checked for each in values)
    assert len(checked.links) == 6
    assert all(0 < each < 50e6 for each in checked.links.values())  # no faster than the link
    for each in checked.ranks:
        assert abs(each.clock_s) <= each.clock_uncertainty_s
        assert each.num_products >= 4 and each.num_wrong == 0 and each.flops_per_s > 0
    assert [each.free_bytes is None for each in checked.ranks] == [False, True, True, True]


def test_wrong_products_and_clocks_are_named_by_rank_and_a_slow_link_measured():
    topology = NETWORK.degraded("rank 2", 0.2)
    checked = labkit.run(corrupted_and_late, 4, topology=topology).values[0]
    faults = found(checked)
    of_values = {each for each in faults if each[0] in ("product", "clock")}
    assert of_values == {("product", (1,)), ("clock", (3,))}, checked.table()
    assert ("clock step", (3,)) in faults
    assert all(x < 10e6 for pair, x in checked.links.items() if 2 in pair)
    product = faults["product", (1,)]
    number, row, column, got, exact = checked.ranks[1].first_wrong
    assert (number, row, checked.ranks[1].num_wrong) == (3, 0, 2)
    assert (product.measured, product.expected) == (got, exact) == (2**-149, 0)
    assert f"row 0, column {column} of product 3" in product.note
    late = checked.ranks[3]
    assert abs(late.clock_s - (OFF_S + STEP_S)) <= late.clock_uncertainty_s
    # Two clocks are read one after the other, and the rank may lose its core in between.
    assert faults["clock step", (3,)].measured == pytest.approx(STEP_S, abs=1)
    assert "product, rank 1: " in checked.table()


def test_a_slow_pair_processor_and_disk_take_at_least_what_they_were_slowed_by():
    checked = labkit.run(slow_on_two_hosts, 4, topology=NETWORK).values[0]
    assert checked.links[0, 2] < MESSAGE_BYTES / 0.025  # one of two ways
    assert checked.ranks[3].flops_per_s < 2 * 512**3 / 0.2
    assert checked.ranks[2].disk_bytes_per_s < BLOCK / 0.6
    assert ("disk", (2,)) in found(checked)
    assert [each.host for each in checked.ranks] == ["a", "a", "b", "b"]
    assert [each.free_bytes is None for each in checked.ranks] == [False, True, False, True]


PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("slow_pairs", "hosts", "expected"),
    [
        ([], "aaaa", set()),
        ([], "aabb", set()),
        ([(0, 2), (1, 2), (2, 3)], "aaaa", {(2,)}),
        ([(0, 2)], "aaaa", {(0, 2)}),
        ([(0, 2)], "aabb", {(0, 2)}),
        ([(0, 2), (1, 2)], "aabb", {(2,)}),
        ([(0, 2), (0, 3), (1, 2), (1, 3)], "aabb", set()),  # all between hosts are alike
    ],
)
def test_a_rank_or_a_pair_is_slow_beside_links_of_its_kind(slow_pairs, hosts, expected):
    """Healthy links differ by up to 2, and slow ones have a fifth of the median."""
    links = {pair: 9e6 if pair in slow_pairs else 30e6 + 5e6 * n for n, pair in enumerate(PAIRS)}
    findings = preflight_checks._of_links(links, list(hosts), times=3.0)
    assert {(each.check, each.ranks) for each in findings} == {("link", r) for r in expected}
    assert all(each.measured == 9e6 < each.expected for each in findings)


HEALTHY = RankCheck("a", 20e9, 9, 0, None, None, None, "", 0.0, 0.0, 0.001)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"flops_per_s": 8e9}, None),
        ({"flops_per_s": 6e9}, ("speed", 6e9, 20e9 / 3)),
        ({"disk_bytes_per_s": 40e6, "free_bytes": 2e9}, None),
        ({"disk_bytes_per_s": 9e6, "free_bytes": 2e9}, ("disk", 9e6, 90e6 / 3)),
        ({"disk_bytes_per_s": 0.0, "disk_error": "full"}, ("disk", 0, 10e6)),
        ({"free_bytes": 0.9e9}, ("space", 0.9e9, 1e9)),
        ({"num_wrong": 1, "first_wrong": (3, 0, 5, 2.0, 4.0)}, ("product", 2.0, 4.0)),
        ({"clock_s": 0.0509}, None),  # within the bound and the uncertainty
        ({"clock_s": -0.0511}, ("clock", -0.0511, 0.05)),
        ({"clock_step_s": 0.051}, ("clock step", 0.051, 0.05)),
    ],
)
def test_one_rank_in_four_that_differs_is_named_and_nobody_else(change, finding):
    writes = dataclasses.replace(HEALTHY, disk_bytes_per_s=90e6, free_bytes=2e9)
    ranks = [writes, HEALTHY, dataclasses.replace(HEALTHY, **change), HEALTHY]
    findings = preflight_checks._of_ranks(ranks, times=3.0, free_bytes=1e9)
    assert [(each.check, each.ranks, each.measured) for each in findings] == (
        [] if finding is None else [(finding[0], (2,), finding[1])]
    )
    assert [each.expected for each in findings] == pytest.approx(finding[2:] if finding else [])


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
    assert (status == 0) == figures["is_ready"] == (figures["findings"] == []), out
    # Two ranks on a busy machine may differ in what they measure, and in nothing else.
    assert {each["check"] for each in figures["findings"]} <= {
        "speed",
        "link",
        "disk",
        "clock step",
    }
    assert [each["num_wrong"] for each in figures["ranks"]] == [0, 0]
    assert figures["links"][0][:2] == [0, 1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("findings", "status", "says"),
    [([], 0, "\nready"), ([Finding("speed", (1,), 6e9, 7e9)], 1, "\nnot ready")],
)
def test_the_command_fails_where_there_is_a_finding(monkeypatch, capsys, findings, status, says):
    checked = Preflight([HEALTHY, HEALTHY], {(0, 1): 50e6}, findings)
    monkeypatch.setattr("labkit.launch.launch", lambda *_, **__: SimpleNamespace(values=[checked]))
    found_status, out = command(monkeypatch, capsys)
    assert found_status == status and says in out
    assert ("speed, rank 1: 6 GFLOP/s" in out) == bool(findings)


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

"""Where ranks run, and how many there can be. No GPU is needed: counts and machines are made up."""

import re
from dataclasses import replace

import pytest
import torch

from labkit import run
from labkit.comm.connect import placement
from labkit.launch import request
from labkit.launch.machine import Machine

LAPTOP = Machine(
    num_cores=8,
    num_host_cores=8,
    memory_bytes=16 * 10**9,
    available_bytes=8 * 10**9,
    max_open_files=256,  # the limit on macOS
    num_open_files=60,
)


@pytest.mark.parametrize(
    ("device", "world_size", "num_gpus", "expected"),
    [
        (None, 4, 0, "cpu"),
        (None, 4, 4, "cuda"),
        (None, 4, 3, "cpu"),  # nobody asked for sharing
        ("cuda", 4, 1, "cuda"),
        ("cuda", 4, 8, "cuda"),
        ("cpu", 4, 8, "cpu"),
    ],
)
def test_gpus_are_shared_only_when_asked_for(device, world_size, num_gpus, expected):
    assert request.chosen_device(device, world_size, num_gpus) == expected


@pytest.mark.parametrize(("world_size", "num_gpus"), [(4, 1), (5, 2), (3, 2)])
def test_ranks_that_share_gpus_go_round_and_talk_through_the_host(world_size, num_gpus):
    places = [placement(rank, world_size, "cuda", num_gpus) for rank in range(world_size)]
    assert {backend for backend, _ in places} == {"gloo"}
    assert [place.index for _, place in places] == [rank % num_gpus for rank in range(world_size)]


def test_a_gpu_for_each_rank_means_nccl():
    assert placement(3, 4, "cuda", 4) == ("nccl", torch.device("cuda", 3))
    assert placement(3, 4, "cpu", 0) == ("gloo", torch.device("cpu"))


def test_a_rank_that_sees_no_gpu_says_so():
    with pytest.raises(RuntimeError, match="rank 2 was to use a GPU"):
        placement(2, 4, "cuda", 0)


def test_sharing_is_said_in_one_line_and_only_then():
    assert request.note_on_gpus("cuda", 4, 1).startswith("4 ranks share 1 GPU:")
    assert request.note_on_gpus("cuda", 4, 3).startswith("4 ranks share 3 GPUs:")
    assert request.note_on_gpus("cuda", 4, 4) == request.note_on_gpus("cpu", 4, 1) == ""


def test_the_line_is_printed_by_a_run_that_shares(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="sees none"):  # the ranks count for themselves
        run(print, 2, device="cuda")
    assert capsys.readouterr().out.startswith("2 ranks share 1 GPU")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"cuda": None, "hip": None}, "without CUDA"),
        ({"cuda": "13.0"}, "CUDA_VISIBLE_DEVICES=''"),
    ],
)
def test_cuda_where_there_is_none_says_why_and_names_the_choices(monkeypatch, setting, reason):
    for name, value in setting.items():
        monkeypatch.setattr(torch.version, name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=f"{reason}.*'cpu'"):
        request.chosen_device("cuda", 2, 0)


@pytest.mark.parametrize("device", ["mps", "tpu", 0])
def test_an_unknown_device_is_refused_with_the_choices(device):
    with pytest.raises(ValueError, match=re.escape(repr(device)) + ".*'cpu' or 'cuda'"):
        request.chosen_device(device, 2, 1)


@pytest.mark.parametrize(
    ("change", "most", "reason"),
    [
        ({}, (256 - 60 - 16) // 5, "256 (ulimit -n; 60 are in use)"),
        ({"max_open_files": 10**6, "available_bytes": 4 * 10**8}, 50, "0.4 GB of memory"),
        ({"max_open_files": 10**6, "available_bytes": None}, 1959, "8 cores"),
        ({"max_open_files": None, "available_bytes": None, "num_cores": 0.5}, 489, "0.5 cores"),
    ],
)
def test_more_ranks_than_make_sense_are_refused_with_the_numbers(change, most, reason):
    machine = replace(LAPTOP, **change)
    request.check_number(most, 120, machine)
    with pytest.raises(ValueError, match=re.escape(reason)) as refused:
        request.check_number(most + 1, 120, machine)
    assert f"world_size={most + 1} " in str(refused.value)
    assert f"Use at most {most}" in str(refused.value)


def test_who_waits_longer_may_have_more_ranks():
    machine = replace(LAPTOP, max_open_files=None, available_bytes=None)
    assert request.most_ranks(480, machine)[0] == pytest.approx(
        2 * request.most_ranks(120, machine)[0], abs=1
    )
    assert request.most_ranks(0.1, machine) == request.most_ranks(120, machine)


def test_one_rank_is_never_too_many():
    poor = replace(LAPTOP, available_bytes=0, max_open_files=8)
    request.check_number(1, 30, poor)


def test_a_run_of_a_million_ranks_starts_none():
    with pytest.raises(ValueError, match="world_size=1000000"):
        run(print, 1_000_000)

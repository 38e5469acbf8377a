"""labkit doctor: each problem is provoked, and must be named with its reason and a remedy."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from labkit.launch import resources
from labkit.launch.checkup import check_up, packages, smoke_run, versions
from labkit.launch.errors import RunTimeout
from labkit.launch.machine import Machine
from labkit.launch.resources import Level, gpus, temporary_files

HEALTHY = Machine(
    num_cores=4,
    num_host_cores=4,
    memory_bytes=16 * 10**9,
    available_bytes=8 * 10**9,
    max_open_files=1024,
    num_open_files=10,
    max_processes=4096,
)
JUDGES = [resources.cores, resources.memory, resources.open_files, resources.processes]


def is_explained(finding):
    """A problem says why it matters and what to do; what is well says neither."""
    return bool(finding.why) == bool(finding.fix) == (finding.level is not Level.OK)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_healthy_machine_is_well(judge):
    assert judge(HEALTHY).level is Level.OK


@pytest.mark.parametrize(
    ("judge", "change", "level", "says"),
    [
        (resources.cores, {"num_cores": 1}, Level.WARNING, "1 of the machine's 4"),
        (resources.cores, {"num_cores": 1.5}, Level.WARNING, "1.5 of the machine's 4"),
        (resources.memory, {"available_bytes": 10**9}, Level.WARNING, "1.0 GB available"),
        (resources.memory, {"available_bytes": 10**8}, Level.ERROR, "100 MB available"),
        (resources.memory, {"available_bytes": -5}, Level.ERROR, "0 MB available"),
        (
            resources.memory,
            {"memory_bytes": 10**9, "available_bytes": None, "is_memory_limited": True},
            Level.WARNING,
            "1.0 GB (",
        ),
        (resources.open_files, {"max_open_files": 100}, Level.WARNING, "4 ranks in a"),
        (resources.open_files, {"max_open_files": 30}, Level.ERROR, "30 per process"),
        (resources.processes, {"max_processes": 50}, Level.WARNING, "at most 50"),
    ],
)
def test_what_is_scarce_is_named_with_its_reason_and_a_remedy(judge, change, level, says):
    finding = judge(replace(HEALTHY, **change))
    assert (finding.level, is_explained(finding)) == (level, True)
    assert says in finding.text


def test_few_open_files_are_counted_for_the_process_that_needs_them():
    """A terminal has more of them left than a kernel: its two ranks run all the same."""
    finding = resources.open_files(replace(HEALTHY, max_open_files=40))
    assert finding.level is Level.WARNING
    for fact in ("40 per process", "0 ranks in a notebook", "64 open", "2 ranks in a terminal"):
        assert fact in finding.text


@pytest.mark.parametrize("judge", JUDGES)
def test_a_machine_that_tells_nothing_is_not_blamed(judge):
    finding = judge(Machine(num_cores=2, num_host_cores=2))
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    ("sizes", "level", "says"),
    [
        ((64 * 2**20, 64 * 2**20), Level.WARNING, "67 MB, 67 MB free"),  # docker's default
        ((2**34, 10**6), Level.WARNING, "17.2 GB, 1 MB free"),
        ((2**34, 2**33), Level.OK, "17.2 GB, 8.6 GB free"),
        (None, Level.WARNING, "not there"),
    ],
)
def test_a_small_shared_memory_is_a_warning(monkeypatch, sizes, level, says):
    monkeypatch.setattr(resources, "folder_sizes", lambda folder: sizes)
    finding = resources.shared_memory(platform="linux")
    assert (finding.level, is_explained(finding)) == (level, True)
    assert says in finding.text
    assert ("--shm-size" in finding.fix) == (level is not Level.OK)


def test_macos_needs_no_shared_memory(tmp_path):
    assert resources.shared_memory(tmp_path / "missing", "darwin").level is Level.OK


# --- the folder for temporary files ------------------------------------------------------------


def test_a_folder_that_works_is_left_as_it_was(tmp_path):
    finding = temporary_files(tmp_path)
    assert finding.level is Level.OK and "mapped files work" in finding.text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_prevents_runs(tmp_path):
    (tmp_path / "a file").write_text("")
    for folder in (tmp_path / "missing", tmp_path / "a file"):
        finding = temporary_files(folder)
        assert finding.level is Level.ERROR and is_explained(finding)
        assert str(folder) in finding.text and "TMPDIR" in finding.fix


def test_no_folder_at_all_prevents_runs(monkeypatch):
    def finds_none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", finds_none)
    finding = temporary_files()
    assert finding.level is Level.ERROR and "No usable temporary" in finding.text


def test_a_file_system_without_mappings_prevents_runs(monkeypatch, tmp_path):
    def refuses(*_):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(resources.mmap, "mmap", refuses)
    finding = temporary_files(tmp_path)
    assert finding.level is Level.ERROR and "mapped" in finding.text


def test_a_mapping_that_does_not_show_in_the_file_prevents_runs(monkeypatch, tmp_path):
    real = resources.mmap.mmap
    monkeypatch.setattr(resources.mmap, "mmap", lambda _, size: real(-1, size))
    finding = temporary_files(tmp_path)
    assert finding.level is Level.ERROR and "does not show" in finding.text


@pytest.mark.parametrize(("free", "level"), [(10**6, Level.ERROR), (10**8, Level.WARNING)])
def test_a_full_disk_is_named(monkeypatch, tmp_path, free, level):
    monkeypatch.setattr(resources, "folder_sizes", lambda folder: (10**9, free))
    finding = temporary_files(tmp_path)
    assert finding.level is level and f"{free // 10**6} MB free" in finding.text


# --- versions and packages ---------------------------------------------------------------------


def version_of(installed):
    def look_up(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    return look_up


REQUIRED = ["torch>=2.9", 'jupyterlab>=4.2; extra == "lab"', 'ruff>=0.6; extra == "dev"']


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        ({"torch": "2.9.0+cpu", "jupyterlab": "4.10"}, "all 2"),
        ({"torch": "2.13"}, "jupyterlab is missing"),
        ({"torch": "2.10", "jupyterlab": "4.1.9"}, "jupyterlab is 4.1.9"),
        ({"jupyterlab": "4.2"}, "torch is missing"),
    ],
)
def test_missing_and_old_packages_are_named(installed, says):
    finding = packages(version_of(installed), REQUIRED)
    assert says in finding.text
    assert is_explained(finding)


def test_this_environment_has_what_the_lab_needs():
    assert packages().level is Level.OK
    assert f"torch {metadata.version('torch')}" in versions().text


def test_a_missing_package_is_no_version():
    assert "jupyterlab missing" in versions(version_of({"torch": "2.13"})).text


# --- GPUs --------------------------------------------------------------------------------------


def test_gpus_are_named(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150 * 10**9)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    assert gpus().text == "2: NVIDIA H200 (150.0 GB), NVIDIA H200 (150.0 GB)"


def test_a_driver_that_torch_cannot_use_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(resources, "_NVIDIA", (tmp_path,))
    finding = gpus()
    assert finding.level is Level.WARNING and is_explained(finding)
    assert "torch sees no GPU" in finding.text


def test_a_driver_that_fails_is_a_warning(monkeypatch):
    def fails():
        raise RuntimeError("The NVIDIA driver on your system is too old\nmore")

    monkeypatch.setattr(torch.cuda, "device_count", fails)
    finding = gpus()
    assert finding.level is Level.WARNING and finding.text.endswith("is too old")


def test_no_gpu_is_no_problem(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(resources, "_NVIDIA", ())
    assert gpus().level is Level.OK


# --- a run of two ranks ------------------------------------------------------------------------


def test_two_ranks_run():
    finding = smoke_run(limit_s=300)
    assert finding.level is not Level.ERROR, finding
    assert "s the first time" in finding.text


def fails():
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("pair", "says"),
    [(fails, "Too many open files"), (lambda: [3.0, 4.0], "[3.0, 4.0]")],
)
def test_a_run_that_fails_prevents_runs(pair, says):
    finding = smoke_run(pair)
    assert finding.level is Level.ERROR and is_explained(finding)
    assert says in finding.text


def test_a_run_that_hangs_does_not_hang_the_doctor():
    forever = threading.Event()
    finding = smoke_run(lambda: forever.wait() or [], limit_s=-0.9)
    assert finding.level is Level.ERROR and "not done after 0.1 s" in finding.text
    forever.set()


def test_a_slow_run_is_a_warning():
    def sleeps():
        time.sleep(1.05)
        return [3.0, 3.0]

    finding = smoke_run(sleeps)
    assert finding.level is Level.WARNING and is_explained(finding)


def still_importing():
    stack = '  File "<frozen importlib._bootstrap>", line 1176 in _find_and_load\n'
    raise RunTimeout("the run did not end within 6 s: rank 0 was still starting", stacks=[stack])


def test_ranks_that_are_still_importing_are_given_longer():
    pairs = [still_importing, lambda: [3.0, 3.0], lambda: [3.0, 3.0]]
    finding = smoke_run(lambda: pairs.pop(0)())
    assert finding.level is not Level.ERROR and not pairs


def test_ranks_that_only_import_are_slow_and_not_forbidden():
    finding = smoke_run(still_importing)
    assert finding.level is Level.ERROR and is_explained(finding)
    assert "too busy" in finding.why and "security" not in finding.fix
    assert "still starting" in finding.text


def test_ranks_that_wait_for_something_else_get_no_second_run():
    runs = []

    def waits():
        runs.append(1)
        raise RunTimeout("the run did not end within 6 s", stacks=['  File "a.py", line 1 in f\n'])

    assert "security software" in smoke_run(waits).fix and len(runs) == 1


# --- all of it, for real -----------------------------------------------------------------------


def test_every_finding_is_explained_and_the_run_comes_last():
    findings = check_up()
    assert all(is_explained(finding) for finding in findings)
    assert findings[-1].subject == "a run of 2 ranks"


def test_too_few_open_files_are_found_for_real(tmp_path):
    """In a process that really may open only 30."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))\n"
        "from labkit.launch.checkup import check_up\n"
        "for finding in check_up(): print(int(finding.level), finding.subject)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert "2 open files" in done.stdout.splitlines(), done.stdout


def test_a_folder_of_another_user_prevents_runs(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    assert temporary_files(tmp_path).level is Level.ERROR

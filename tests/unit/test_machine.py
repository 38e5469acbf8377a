"""Descriptions of a machine, also of containers, of macOS and of unusual files."""

import os

import pytest

from labkit.launch import machine


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


VERSION_2 = {
    "proc/self/cgroup": "0::/pod/app\n",
    "sys/fs/cgroup/pod/app/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/pod/app/memory.max": "2000000000\n",
    "sys/fs/cgroup/pod/app/memory.current": "500000000\n",
    "sys/fs/cgroup/pod/memory.max": "max\n",
    "sys/fs/cgroup/pod/app/pids.max": "100\n",
}
# Inside a container the path is the host's: what is there is mounted at the top.
VERSION_1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n8:pids:/docker/abc\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "250000000\n",
    "sys/fs/cgroup/pids/pids.max": "max\n",
}


@pytest.mark.parametrize(
    ("files", "cores", "limit", "left", "processes"),
    [
        (VERSION_2, 1.5, 2 * 10**9, 15 * 10**8, 100),
        (VERSION_1, 0.5, 10**9, 75 * 10**7, None),
        ({}, None, None, None, None),
        ({"proc/self/cgroup": "rubbish\n\n::::\n0::/../..\n"}, None, None, None, None),
        ({**VERSION_2, "sys/fs/cgroup/pod/cpu.max": "1 0"}, 1, 2 * 10**9, 15 * 10**8, 100),
    ],
)
def test_a_containers_limits_are_found(tmp_path, files, cores, limit, left, processes):
    root = tree(tmp_path, files)
    assert machine.cpu_limit(root) == cores
    assert machine.memory_limit(root) == limit
    assert machine.memory_left(root) == left
    assert machine.process_limit(root) == processes


@pytest.mark.parametrize(
    ("limits", "group", "statistics"),
    [
        (VERSION_2, "sys/fs/cgroup/pod/app", "anon 9\n{}_file 3\n{}\n"),
        (VERSION_1, "sys/fs/cgroup/memory", "inactive_file 9\ntotal_{}_file 3\ntotal_{}\n"),
    ],
)
@pytest.mark.parametrize(
    ("kept", "given_back"),
    [(("inactive", "active_file 4"), 7), (("active", "slab_reclaimable 5"), 8)],
)
def test_what_the_kernel_keeps_of_files_is_not_in_use(
    tmp_path, limits, group, statistics, kept, given_back
):
    before = machine.memory_left(tree(tmp_path, limits))
    tree(tmp_path, {f"{group}/memory.stat": statistics.format(*kept)})
    assert machine.memory_left(tmp_path) == before + given_back


@pytest.mark.parametrize("odd", ["", "inactive_file\n", "inactive_file lots\n", "rubbish"])
def test_odd_statistics_say_nothing_of_memory_that_can_be_given_back(tmp_path, odd):
    files = {**VERSION_2, "sys/fs/cgroup/pod/app/memory.stat": odd}
    assert machine.memory_left(tree(tmp_path, files)) == 15 * 10**8


def test_no_more_is_left_than_the_limit_though_two_files_are_read_one_after_the_other(tmp_path):
    files = {**VERSION_2, "sys/fs/cgroup/pod/app/memory.stat": "inactive_file 1900000000\n"}
    assert machine.memory_left(tree(tmp_path, files)) == 2 * 10**9


def test_no_limit_is_no_limit(tmp_path):
    unlimited = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    root = tree(tmp_path, {**VERSION_1, **unlimited})
    assert (machine.cpu_limit(root), machine.memory_limit(root)) == (None, None)


def test_a_containers_limit_counts_before_the_hosts_memory(tmp_path):
    meminfo = "MemTotal:  8000000 kB\nMemFree: 1 kB\nMemAvailable:  4000000 kB\n"
    found = machine.look(tree(tmp_path, {**VERSION_2, "proc/meminfo": meminfo}))
    assert (found.memory_bytes, found.is_memory_limited) == (2 * 10**9, True)
    assert found.available_bytes == 15 * 10**8
    assert found.num_cores <= 1.5
    assert found.max_processes <= 100


def test_the_hosts_own_memory_counts_where_no_container_limits_it(tmp_path):
    meminfo = "MemTotal:  8000000 kB\nMemAvailable:  4000000 kB\n"
    found = machine.look(tree(tmp_path, {"proc/meminfo": meminfo}))
    assert (found.memory_bytes, found.available_bytes) == (8192 * 10**6, 4096 * 10**6)
    assert not found.is_memory_limited


@pytest.mark.parametrize("meminfo", [None, "", "MemTotal: lots\n", "MemTotal:\n"])
def test_a_system_that_says_little_is_no_error(tmp_path, monkeypatch, meminfo):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "sysconf", lambda name: 4096)
    root = tree(tmp_path, {} if meminfo is None else {"proc/meminfo": meminfo})
    found = machine.look(root)
    assert found.num_cores == found.num_host_cores == os.cpu_count()
    assert (found.memory_bytes, found.available_bytes) == (4096 * 4096, None)


def test_a_system_that_says_nothing_is_no_error(tmp_path, monkeypatch):
    def refuses(*_):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", refuses)
    monkeypatch.setattr(os, "listdir", lambda path: (_ for _ in ()).throw(OSError(path)))
    monkeypatch.setattr(machine.resource, "getrlimit", refuses)
    found = machine.look(tmp_path)
    assert found.memory_bytes is found.available_bytes is found.max_open_files is None
    assert found.num_open_files == 0
    assert machine.folder_sizes(tmp_path / "missing") is None


def test_this_machine_has_cores_and_files():
    found = machine.look()
    assert 0 < found.num_cores <= found.num_host_cores
    assert found.num_open_files > 3

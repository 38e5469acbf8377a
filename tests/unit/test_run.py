"""run: what it takes, what it shows, what it returns."""

import os
import socket
import subprocess
import sys
import time

import pytest
import torch

import labkit
from labkit import Deadlock, run


async def a_coroutine(world):
    """Nothing that a rank could call to its end."""


def test_values_logs_and_memory_are_by_rank():
    def fills(world, num_mib):
        print(f"rank {world.rank} of {world.size}")
        block = torch.ones(num_mib * 2**18 * (world.rank + 1))
        return world.rank, block.sum().item()

    result = run(fills, 3, (40,))
    assert [value[0] for value in result.values] == [0, 1, 2]
    assert result.logs == [f"rank {rank} of 3\n" for rank in range(3)]
    for rank, memory in enumerate(result.memory):
        beyond_the_block = memory.growth_bytes - 40 * 2**20 * (rank + 1)
        assert -(2**20) < beyond_the_block < 16 * 2**20  # torch's code is loaded as it is used


def test_output_comes_in_whole_lines_named_by_rank(capsys):
    def prints(world):
        for part in ("one ", "line\n", "and a last one without an end"):
            sys.stdout.write(part)
        os.write(2, b"from a descriptor\n")

    run(prints, 2)
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == [
        f"[rank {rank}] {text}"
        for rank in range(2)
        for text in ("and a last one without an end", "from a descriptor", "one line")
    ]


def test_output_is_live(tmp_path):
    script = tmp_path / "live.py"
    script.write_text(
        "import time, labkit\n"
        "def slow(world):\n"
        "    print('now')\n"
        "    time.sleep(30)\n"
        "labkit.run(slow, 1, timeout=600)\n"
    )
    driver = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout.readline() == "[rank 0] now\n"
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


def test_a_flood_of_output_is_shown_in_part_and_kept_in_full(capsys):
    def floods(world):
        for number in range(3000):
            print(number)

    result = run(floods, 1)
    assert result.logs[0].splitlines() == [str(number) for number in range(3000)]
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 1001
    assert "logs[0]" in shown[-1]


def test_closures_and_their_data_travel():
    scale = torch.tensor([2.0, 3.0])

    def scaled(world):
        return scale * world.rank

    assert torch.equal(run(scaled, 2).values[1], scale)


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import labkit\nprint('once')\ndef f(world): return world.rank\n"
        "print(labkit.run(f, 2, timeout=600).values)\n"  # its own server imports torch first
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert done.stdout.split("\n")[:2] == ["once", "[0, 1]"], done.stderr


def test_ranks_see_the_drivers_surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_VALUE", "seen")
    monkeypatch.chdir(tmp_path)
    assert run(lambda world: (os.environ["LABKIT_TEST_VALUE"], os.getcwd()), 1).values == [
        ("seen", str(tmp_path))
    ]


def test_a_small_view_comes_back_without_the_rest_of_its_storage():
    def small_view(world):
        weight = torch.ones(3, requires_grad=True)
        return torch.arange(10**6)[10:13], (weight * 2), weight

    view, product, weight = run(small_view, 1).values[0]
    assert view.tolist() == [10, 11, 12]
    assert view.untyped_storage().nbytes() == 24
    assert not product.requires_grad
    assert weight.requires_grad


def test_each_rank_computes_with_one_thread():
    assert run(lambda world: torch.get_num_threads(), 2).values == [1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run("train", 2), "'train' is not one"),
        (lambda: run(print, 0), "world_size=0"),
        (lambda: run(print, 2, timeout=0), "timeout=0"),
        (lambda: run(print, 2, stall=0), "stall=0"),
        (lambda: run(a_coroutine, 2), "a_coroutine"),
        (lambda: run(print, 2, args=b"ab"), "args=b'ab'"),
        (lambda: run(print, 2, device="tpu"), "tpu"),
        (lambda: run(print, 2, device="cuda"), "no GPU.*cpu"),
    ],
)
def test_calls_that_cannot_be_made_are_refused(call, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_runs_leave_no_files_behind(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run(lambda world: None, 2)
    assert list(tmp_path.iterdir()) == []


def test_folders_of_dead_drivers_are_swept(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    (tmp_path / f"labkit-run-{host}-{ended.pid}-abc").mkdir()
    another_hosts = tmp_path / f"labkit-run-not-{host}-{ended.pid}-abc"
    another_hosts.mkdir()
    mine = tmp_path / f"labkit-run-{host}-{os.getpid()}-abc"
    mine.mkdir()
    run(lambda world: None, 1)
    assert set(tmp_path.iterdir()) == {mine, another_hosts}


def test_the_package_exports_what_a_reader_starts_with():
    assert {"run", "Run", "Group", "RankError", "RunTimeout", "Deadlock"} <= set(labkit.__all__)


def test_a_child_that_a_rank_forks_does_not_answer_for_it():
    def forks(world):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return "parent" if child else "child"

    assert run(forks, 2).values == ["parent", "parent"]


def test_a_deadlock_of_some_ranks_shows_while_others_go_on():
    def two_of_four(world):
        pair = world.split(world.rank // 2)
        if world.rank < 2:
            world.recv(torch.empty(1), 1 - world.rank)
        while True:
            pair.all_reduce(torch.ones(1))
            time.sleep(0.01)

    with pytest.raises(Deadlock, match="ranks 0 and 1"):
        run(two_of_four, 4, timeout=600)


def test_a_rank_loads_data_with_workers_as_a_script_does():
    def loads(world):
        class Squares(torch.utils.data.Dataset):  # known to no importable module
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return index**2

        loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=1)
        return torch.cat(list(loader)).tolist()

    assert run(loads, 2).values == [[0, 1, 4, 9]] * 2


def test_a_function_may_use_torch_ops():
    def adds(world):
        return torch.ops.aten.add(torch.ones(1), world.rank).item()

    assert run(adds, 2).values == [1.0, 2.0]


def test_a_function_may_have_torchs_operators_under_names_of_its_own():
    aten, add, relu = torch.ops.aten, torch.ops.aten.add, torch.ops.aten.relu.default

    def names(world):
        is_same = add is torch.ops.aten.add and relu is torch.ops.aten.relu.default
        return is_same, relu(aten.add(torch.ones(1), world.rank)).item()

    assert run(names, 2).values == [(True, 1.0), (True, 2.0)]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (("a", 5), TypeError, "5 is"),
        (("a", print, 5), TypeError, r"args=5: .*\(5,\)"),
        (("a", print, "ab"), TypeError, "args='ab'"),
        (("no/where/a", print), FileNotFoundError, "where"),
    ],
)
def test_a_payload_that_could_not_be_run_is_not_saved(tmp_path, call, error, said):
    name, *rest = call
    with pytest.raises(error, match=said):
        labkit.save_payload(tmp_path / name, *rest)
    assert list(tmp_path.iterdir()) == []

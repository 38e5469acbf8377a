"""How a call of labkit ends that is interrupted, wrong, or whose output cannot be written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import cli, progress, run
from labkit.cli import commands
from labkit.grade.verdict import Outcome
from labkit.launch import RankError
from labkit.progress.statistics import OUTCOMES

NAME = "model_state_bytes"


@pytest.fixture
def labkit(tmp_path, monkeypatch, capsys):
    """Call `labkit ...`: (status, stdout, stderr)."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return call


INTERRUPTED = """
import os, signal, sys

module = sys.argv.pop(1)

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from labkit.cli import main
if module == "the end":
    import atexit
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""


# torch.autograd is imported from C++, which has no use for a KeyboardInterrupt.
@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("list", "typer"),
        ("list", "rich.console"),
        ("list", "labkit.cli.exercises"),
        ("list", "sqlite3"),
        ("list", "the end"),
        ("check", "multiprocessing.forkserver"),
        (f"check {NAME}", "torch.autograd"),
        ("doctor", "torch"),
        ("preflight", "torch"),
        ("profile x.json", "labkit.profile.trace_file"),
        ("serve x", "torch"),
    ],
)
def test_ctrl_c_while_it_starts_or_ends_is_status_130_and_nothing_else(words, module, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, *words.split()],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "COLUMNS": "100", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (130, "")
    assert bool(result.stdout) == (module == "the end")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_that_is_inherited_as_ignored_is_heard_by_watch_only(monkeypatch):
    handlers = []
    monkeypatch.setattr(cli, "_start_fork_server", lambda: None)
    monkeypatch.setattr(commands, "main", lambda: handlers.append(signal.getsignal(signal.SIGINT)))
    for words in ("list", "watch"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        monkeypatch.setattr(sys, "argv", ["labkit", words])
        cli.main()
    assert handlers[0] is signal.SIG_IGN
    assert handlers[1] not in (signal.SIG_IGN, signal.SIG_DFL)


def interrupted(*_):
    raise KeyboardInterrupt


def test_ctrl_c_where_an_answer_is_awaited_is_130(labkit, monkeypatch):
    monkeypatch.setattr("builtins.input", interrupted)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for words in (["solution", NAME], ["drill"], ["cards"], ["mock", "--minutes", 6]):
        status, _, err = labkit(*words)
        assert (status, "Traceback" in err) == (130, False), words


def test_a_question_is_not_written_into_the_file_that_output_is(labkit, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda: "y")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    status, out, err = labkit("solution", NAME)
    assert status == 0 and "[y/N]" in err
    assert out == Path("solutions", f"{NAME}.py").read_text()
    monkeypatch.setattr("builtins.input", lambda: "")
    assert labkit("solution", "alpha_beta")[:2] == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk without room")
@pytest.mark.parametrize("words", ["list", f"solution {NAME} --yes", "export --json -", "--help"])
def test_output_that_cannot_be_written_is_one_line(words, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "labkit.cli", *words.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=600,
        )  # fmt: skip
    assert result.returncode == 1
    (line,) = [each for each in result.stderr.splitlines() if not each.startswith("The solution")]
    assert "No space left" in line


def test_a_command_is_described_as_its_docstring_begins():
    for entries in commands.COMMANDS.values():
        for place, about in entries.items():
            described = commands.loaded(commands.name_of(place)).help
            assert " ".join(described.split("\n\n")[0].split()) == about, place


def test_the_groups_of_help_begin_with_learning(labkit):
    _, out, _ = labkit("--help")
    places = [out.index(f"{heading}:") for heading in commands.COMMANDS]
    assert places == sorted(places) and out.index("  list ") < out.index("  cards ")


def test_a_misspelt_command_gets_the_near_one(labkit):
    status, _, err = labkit("chek")
    assert status == 2 and "'check'" in err


@pytest.mark.parametrize("package", cli.EXTRAS)
def test_a_package_that_is_missing_is_one_line(labkit, monkeypatch, package):
    def without():
        raise ModuleNotFoundError(f"No module named '{package}.part'", name=f"{package}.part")

    monkeypatch.setattr(commands, "main", without)
    status, out, err = labkit("list")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert f"pip install 'labkit[{cli.EXTRAS[package]}]'" in err


def test_a_module_of_no_extra_that_is_missing_is_a_fault_of_ours(labkit, monkeypatch):
    def without():
        raise ModuleNotFoundError("No module named 'labkit.gone'", name="labkit.gone")

    monkeypatch.setattr(commands, "main", without)
    with pytest.raises(ModuleNotFoundError):
        labkit("list")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("bank --only zz", "co-"),
        ("bank --only co-88", "co-8"),
        ("plan --model llama3-70b --gpus 0", "--gpus 0"),
        ("plan --model llama3-70b --global-batch 0", "--global-batch 0"),
        ("plan --model lama", "--model 'lama'"),
        ("plan --model H100", "--model 'H100'"),
        ("plan --model gpt2 --tokens many", "--tokens many"),
        ("plan --model gpt2 --cluster a100 --precision fp8", "--precision 'fp8'"),
        ("plan --model nowhere/config.json", "nowhere/config.json"),
        ("cache --model Qwen/Qwen3-8B", "not the path of a config.json"),
        ("memory --model gpt2 --layout dp=two", "'two'"),
        ("memory --model gpt2 --layout rp=2", "'rp=2'"),
        ("memory --model gpt2 --cluster h1000", "did you mean h100"),
        ("cache --model gpt2 --gpu H100", "did you mean h100"),
        ("cache --model gpt2 --gpu H100", "'H100' is none of"),
        ("cache --model gpt2 --usable 90", "--usable 90"),
        ("new exercise class --subject zero", "'class'"),
        ("puzzle two rank", "'two rank'"),
        ("mock --minutes 3", "--minutes 3"),
        ("export --json - --anki -", "standard output"),
    ],
)
def test_a_call_that_is_wrong_names_what_was_typed(labkit, words, part):
    status, out, err = labkit(*words.split())
    assert (status, out) == (2, "") and part in err


def test_a_puzzles_name_needs_no_quotes(labkit, tmp_path):
    quoted = labkit("puzzle", "two ranks")
    assert labkit("puzzle", "two", "ranks") == quoted and quoted[0] == 0
    (tmp_path / "rows").write_text("rubbish")
    answered = labkit("puzzle", "two ranks", tmp_path / "rows")
    assert labkit("puzzle", "two", "ranks", tmp_path / "rows") == answered and answered[0] == 1
    status, _, err = labkit("puzzle", "two", "ranks", tmp_path / "gone")
    assert status == 2 and "gone" in err


def test_an_export_to_standard_output_is_the_file(labkit, tmp_path):
    labkit("hint", NAME)
    assert labkit("export", "--json", tmp_path / "all.json")[0] == 0
    status, out, err = labkit("export", "--json", "-")
    assert status == 0 and "1 event" in err
    assert json.loads(out)["events"] == json.loads((tmp_path / "all.json").read_text())["events"]
    assert not Path("-").exists()


HOSTILE = "\x1b[31mHACK\x1b]0;title\x07"


def test_what_an_import_brings_cannot_steer_the_terminal(labkit, tmp_path):
    labkit("hint", NAME)
    labkit("export", "--json", tmp_path / "all.json")
    document = json.loads((tmp_path / "all.json").read_text())
    event = {**document["events"][0], "uid": "a", "kind": "check", "detail": {"outcome": HOSTILE}}
    for field in ("kind", "subject"):
        hostile = {**event, "uid": field, "detail": {}, field: HOSTILE}
        document["events"].append(hostile)
    (tmp_path / "hostile.json").write_text(json.dumps(document))
    assert labkit("import", tmp_path / "hostile.json")[0] == 0
    document["events"].append(event)
    (tmp_path / "hostile.json").write_text(json.dumps(document))
    status, _, err = labkit("import", tmp_path / "hostile.json")
    assert status == 2 and "outcome" in err and "\x1b" not in err
    progress.record("check", NAME, outcome=HOSTILE)  # as one that an older labkit has imported
    progress.record("mock", HOSTILE, minutes=HOSTILE)
    progress.record("puzzle", "two ranks", outcome=HOSTILE)
    for words in ("list", "progress", "puzzle", "cards --list", "drill --list"):
        status, out, err = labkit(*words.split())
        assert status == 0 and not {"\x1b", "\x07"} & set(out + err), words


def test_the_store_knows_how_a_check_can_end():
    assert set(OUTCOMES) == {each.value for each in Outcome}


def raises(world):
    raise ValueError("from a rank")


def test_pytest_shows_the_line_of_the_caller_and_none_of_labkit():
    with pytest.raises(RankError) as caught:
        run(raises, 1, timeout=300)
    shown = caught.traceback.filter(caught)
    assert {Path(entry.path) for entry in shown} == {Path(__file__)}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("design 8b-spot --seed 3", "8b-spot"),
        ("design 8b-spot --model llama3-8b", "8b-spot"),
        ("draw ring-4 rows.txt --hint", "rows.txt"),
        ("draw ring-4 rows.txt --answer", "rows.txt"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(labkit, words, named):
    status, _, err = labkit(*words.split())
    assert status == 2
    assert named in err and "leave out" in " ".join(err.split())

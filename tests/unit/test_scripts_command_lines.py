"""examples/, benchmarks/ and scripts/: --help only helps, and what they can't use is refused."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.an_example import load_example

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("examples", "benchmarks", "scripts")
    for path in (ROOT / folder).glob("*.py")
    # The last one runs under Pythons that are too old for anything else, and takes no arguments.
    if "__main__" in path.read_text() and path.name != "check_python.py"
)
FOLDERS = (f"{ROOT}/examples/", f"{ROOT}/benchmarks/")
PAYLOAD = ROOT / "examples" / "train.py"
# Each with the words of its last column, one at a time.
REFUSED = """
    examples/memory.py -n               0 -1 3 two
    examples/tensor_parallel.py -n      0 -1 3 two
    examples/pipeline.py -n             0 -1 7 two
    examples/three_d.py --dp            0 -1 4 two
    examples/three_d.py --pp            0 -1 5 two
    examples/three_d.py --tp            0 -1 3 two
    examples/faults.py -n               0 -1 1 two
    examples/bottlenecks.py --jobs      0 -1 1.5 two
    examples/bucket_sizes.py            something
    examples/kills.py --kills           0 -1 two
    examples/serving_traffic.py --seconds  0 -1 nan inf two
    examples/train_and_serve.py --out x --steps  0 -1 two
    examples/train.py --steps           0 two
    examples/train.py --every           0 two
    examples/train_and_serve.py         --steps
    examples/faults.py                  no_such_fault
    examples/memory.py                  zero9
    examples/cluster_simulation.py      no_such_case
    benchmarks/context_parallel.py      0 -1 two
    benchmarks/links.py                 something
    benchmarks/moe.py                   0 -1 two
    benchmarks/pipeline.py              0 3 two
    benchmarks/serving.py --rounds      0 two
    benchmarks/checkpoint.py            /no/such/folder
    benchmarks/data_parallel.py         something
    benchmarks/tensor_parallel.py       something
    benchmarks/rl.py                    something
    benchmarks/rl.py --seeds            0 two
    benchmarks/zero.py                  something
    scripts/notebooks.py                no_such.ipynb
    scripts/size.py                     no_such_commit
    scripts/fuzz.py traces --count      0 -1 two
    scripts/fuzz.py traces              no_such.json
    scripts/install_torch.py            torch==2.13.0
"""
COMMANDS = [
    [*words.split(), last]
    for words, values in re.findall(r"^ +(.+?)  +(.+)$", REFUSED, re.M)
    for last in values.split()
]
COMMANDS += [[f"{path.parent.name}/{path.name}", "--no-such-option"] for path in SCRIPTS]
COMMANDS.append(["examples/train.py"])


@pytest.fixture
def start(monkeypatch, capsys):
    """Runs a script as if from a terminal, in this process; its exit status, stdout and stderr."""
    before = set(sys.modules)

    def start(path, *arguments):
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        return ended.value.code, *capsys.readouterr()

    yield start
    for name in set(sys.modules) - before:  # scripts that import each other
        if str(getattr(sys.modules[name], "__file__", "")).startswith(FOLDERS):
            del sys.modules[name]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_help_says_what_the_script_does_and_does_nothing(start, path):
    status, said, errors = start(path, "--help")
    first = ast.get_docstring(ast.parse(path.read_text())).split("\n")[0]
    assert (status, errors) == (0, "")
    assert said.startswith("usage: ")
    assert " ".join(first.split()) in " ".join(said.split())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_a_script_cannot_use_is_refused_in_one_line(start, command):
    name, *arguments = command
    status, said, errors = start(ROOT / name, *arguments)
    assert (status, said) == (2, "")
    usage, error, *more = errors.split(f"{Path(name).name}: error: ")
    assert usage.startswith("usage: ")
    assert not more and error.count("\n") == 1


def test_a_payload_says_how_torchrun_starts_it(start):
    said = start(PAYLOAD, "--help")[1]
    assert "-m labkit.launch.payload examples/train.py --out runs/first -- --steps 200" in said


def test_names_with_commas_are_quoted_where_they_are_listed(start):
    said = " ".join(start(ROOT / "examples" / "memory.py", "--help")[1].split())
    assert "'zero1', 'zero1, bf16', 'zero1, on disk', 'zero2'" in said


@pytest.mark.parametrize("load", [0.1, 7.3])
def test_figures_of_a_machine_that_others_use_say_so(monkeypatch, load):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert ("load 7.3" in load_example("bottlenecks").note_on_load()) == (load > 1)

"""labkit on a machine that has torch and cloudpickle, and nothing of what the lab adds."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What such a machine does not have.
EXTRAS = (
    "matplotlib IPython ipywidgets ipykernel rich typer platformdirs fsrs watchfiles numpy PIL "
    "pytest"
).split()
RUN = """
import labkit

def total(world):
    return world.all_reduce(__import__("torch").ones(3)).sum().item()

if __name__ == "__main__":
    print(labkit.run(total, 2).values)
"""


def loaded_by_importing_labkit():
    code = "import sys, labkit; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_labkit_loads_ranks_and_groups_and_none_of_the_extras():
    loaded = loaded_by_importing_labkit()
    assert {name.split(".")[1] for name in loaded if name.startswith("labkit.")} == {
        "arguments",
        "comm",
        "launch",
    }
    assert loaded & set(EXTRAS) <= {"numpy"}  # torch loads it where it is there


def test_ranks_run_where_only_torch_and_cloudpickle_are_installed(tmp_path):
    for name in EXTRAS:  # found first, on every rank too
        (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError(__name__)")
    script = tmp_path / "total.py"
    script.write_text(RUN)
    environment = {"PATH": "", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    result = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.stdout, result.returncode) == ("[6.0, 6.0]\n", 0), result.stderr

"""labkit on a machine that has torch and cloudpickle, and nothing of what the lab adds."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Packages that such a machine lacks.
EXTRAS = (
    "matplotlib IPython ipywidgets ipykernel rich typer platformdirs fsrs watchfiles numpy PIL "
    "pytest"
).split()
RUN = """
import sys
import labkit

def total(world):
    return world.all_reduce(__import__("torch").ones(3)).sum().item()

if __name__ == "__main__":
    print(labkit.run(total, 2).values)
    print(*{name.split(".")[1] for name in sys.modules if name.startswith("labkit.")})
"""


def test_ranks_run_where_only_torch_and_cloudpickle_are_installed_and_leave_no_file(tmp_path):
    (temporary := tmp_path / "temporary").mkdir()
    asked_for = tmp_path / "asked_for"
    refused = f"open({str(asked_for)!r}, 'a').write(__name__ + ' ')\nraise ModuleNotFoundError"
    for name in EXTRAS:  # found first, on every rank too
        (tmp_path / f"{name}.py").write_text(refused)
    script = tmp_path / "total.py"
    script.write_text(RUN)
    result = subprocess.run(
        [sys.executable, str(script)],
        env={
            "PATH": "",
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "TMPDIR": str(temporary),
            # Where Python itself is a shared library that lies elsewhere.
            "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    values, loaded = result.stdout.splitlines()
    assert values == "[6.0, 6.0]"
    assert set(loaded.split()) == {"lazy", "arguments", "interrupts", "comm", "doctor", "launch"}
    assert set(asked_for.read_text().split()) <= {"numpy"}, "torch takes it where it is there"
    assert list(temporary.iterdir()) == []  # torch makes a folder for Inductor's cache

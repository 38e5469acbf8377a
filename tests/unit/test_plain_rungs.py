"""The plain rung of each ladder: one short file, and one text with the solution of its exercise."""

import ast
from pathlib import Path

import pytest

from tests.unit.test_rooms import imports_in

ROOT = Path(__file__).parents[2]
# (below labkit/, solution, the functions and classes that are one text)
PAIRS = [
    ("checkpoint/plain.py", "atomic_commit", ["save", "load_newest"]),
    ("collectives/plain.py", "ring_all_reduce", ["ring_all_reduce"]),
    ("context_parallel/plain.py", "ring_attention_step", ["ring_attention"]),
    ("data_parallel/plain.py", "average_gradients", ["average_gradients"]),
    ("moe/plain.py", "expert_all_to_all", ["expert_all_to_all"]),
    ("pipeline/plain.py", "one_f_one_b_schedule", ["one_f_one_b_schedule"]),
    ("tensor_parallel/plain.py", "column_row_mlp", ["column_row_mlp", "_Copied", "_Summed"]),
    ("zero/plain_zero1.py", "zero1_step", ["zero1_step"]),
    ("zero/plain_zero3.py", "zero3_unit", ["zero3_unit"]),
]
PLAIN = [
    path.relative_to(ROOT / "labkit").as_posix()
    for pattern in ("*/plain.py", "zero/plain_*.py")
    for path in sorted((ROOT / "labkit").glob(pattern))
]


def definitions(path):
    """The text of each function and class of a file, by name, without a solution's markers."""
    lines = path.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.strip().startswith("### "))
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return {node.name: ast.get_source_segment(text, node) for node in nodes}


@pytest.mark.parametrize(("path", "solution", "names"), PAIRS)
def test_a_plain_rung_and_its_solution_are_one_text(path, solution, names):
    plain = definitions(ROOT / "labkit" / path)
    solved = definitions(ROOT / "solutions" / f"{solution}.py")
    assert {name: plain[name] for name in names} == {name: solved[name] for name in names}


@pytest.mark.parametrize("path", PLAIN)
def test_a_plain_rung_is_short_and_needs_nothing_of_its_room(path):
    text = (ROOT / "labkit" / path).read_text(encoding="utf-8")
    room, module = f"labkit.{path.removesuffix('.py')}".replace("/", ".").rpartition(".")[::2]
    needed = {target for target, _, _ in imports_in(f"{room}.{module}", text)}
    assert len(text.splitlines()) <= 60
    assert not {target for target in needed if target.startswith(room)}

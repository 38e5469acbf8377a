"""The rooms of labkit: a module imports only from rooms before its own, and few may import more.

Imports inside functions count, and so do importlib.import_module("labkit....") and uses of
torch.distributed by its full name. No files import each other in a loop.
"""

import ast
import importlib
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from unittest.mock import ANY

import pytest

ROOT = Path(__file__).parents[2]
# Bottom to top. `from labkit import run` counts as launch, which is where it comes from.
ROOMS = """
    lazy arguments interrupts comm doctor copies launch hosts collectives mesh gpt_config model data
    optimizer shards large_batch global_norm train memory data_parallel zero precision recompute
    tensor_parallel context_parallel pipeline moe combined checkpoint elastic serving rl lora trees
    compiled calc profile inject viz measure progress grade interview course notebook cli
""".split()
OF_THE_PACKAGE = "launch"
# Formulas that judge the strategies must not come from them.
ALONE = {"calc": {"arguments"}}
# The course imports the rooms, and no room imports the course.
CONTENT = "course"
# Functions of other rooms that the package offers; they load when they are used.
OF_GRADE = ("check", "hint", "reset", "solution")
# A name for names that only type checkers import.
FOR_TYPES = "TYPE_CHECKING"
# (module, function) -> the later rooms that it may import, inside the function only.
EXCEPTIONS = {
    ("labkit", FOR_TYPES): {"grade", "measure"},
    ("labkit", "load_ipython_extension"): {"notebook"},
    ("labkit", "unload_ipython_extension"): {"notebook"},
    ("labkit.launch.payload.__main__", ""): {"hosts"},  # a program of its own
    ("labkit.launch.run", "_torchrun"): {"hosts"},
    ("labkit.launch.run_result", "Run.save"): {"hosts"},
    ("labkit.launch.run_result", "Run.load"): {"hosts"},
    ("labkit.launch.run_result", "Run.show"): {"viz"},
    ("labkit.launch.run_result", "Run.to_chrome_trace"): {"viz"},
}
# Whatever is not the standard library's, and the rooms that may import it. None: every room.
OUTSIDE = {
    "torch": None,
    "torch.distributed": {"comm", "hosts", "course"},  # runs of torch's own DDP are evidence
    "torch.distributed._functional_collectives": {"compiled"},
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks": {"course"},  # torch's DDP, counted
    "torch.distributed.checkpoint": {"checkpoint"},
    "torch.distributed.device_mesh": {"course"},  # a run of torch's own FSDP2 is evidence
    "torch.distributed.fsdp": {"course"},
    "cloudpickle": {"launch", "grade"},
    "numpy": {"viz", "notebook"},
    "PIL": {"viz", "notebook"},
    "matplotlib": {"viz", "notebook"},
    "IPython": {"notebook"},
    "ipywidgets": {"notebook"},
    "anywidget": {"notebook"},
    "traitlets": {"notebook"},
    "ipykernel": {"cli"},  # `labkit start` writes what JupyterLab would of its kernel
    "jupyter_core": {"cli"},
    "platformdirs": {"progress"},
    "fsrs": {"progress"},
    "fastapi": {"serving"},
    "pydantic": {"serving"},
    "starlette": {"serving"},
    "uvicorn": {"serving"},
    "gymnasium": {"rl"},
    "rich": {"cli"},
    "markdown_it": {"interview"},
    "typer": {"cli"},
    "watchfiles": {"cli"},
}


def room_of(module):
    """The room of labkit.<room>[.<more>]; the package's own __init__ belongs to launch."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else OF_THE_PACKAGE


class Imports(ast.NodeVisitor):
    """Every (target, function, line) that a module imports; relative imports made absolute."""

    def __init__(self, module, is_package):
        self.package = module if is_package else module.rpartition(".")[0]
        self.scope, self.found = [], []

    def add(self, target, node):
        self.found.append((target, ".".join(self.scope), node.lineno))

    def visit_scope(self, node):
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_scope

    def visit_If(self, node):
        self.scope += [FOR_TYPES] * (getattr(node.test, "id", "") == FOR_TYPES)
        self.generic_visit(node)
        self.scope = [each for each in self.scope if each != FOR_TYPES]

    def visit_Import(self, node):
        for alias in node.names:
            self.add(alias.name, node)

    def visit_ImportFrom(self, node):
        base = node.module or ""
        if node.level:
            above = self.package.split(".")[: 1 - node.level or None]
            base = ".".join([*above, *([base] if base else [])])
        for alias in node.names:
            name = "grade" if base == "labkit" and alias.name in OF_GRADE else alias.name
            joined = f"{base}.{name}"
            names_a_room = joined == "torch.distributed" or (base == "labkit" and name in ROOMS)
            self.add(joined if names_a_room or joined in MODULES else base, node)

    def visit_Call(self, node):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        if called in ("import_module", "__import__") and names:
            self.add(str(names[0]), node)
        self.generic_visit(node)

    def visit_Attribute(self, node):
        if (getattr(node.value, "id", ""), node.attr) == ("torch", "distributed"):
            self.add("torch.distributed", node)
        self.generic_visit(node)


def fault(module, target, function):
    """Why `module` must not import `target` inside `function` ("" at the top), or None."""
    room, top = room_of(module), target.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top == "labkit":
        other = room_of(target)
        if other not in ROOMS:
            return f"imports {target}, which is in no room"
        if other == room or other in EXCEPTIONS.get((module, function), ()):
            return None
        if other == CONTENT:
            return f"imports {target}: engines find what is taught by its folder"
        if other not in ALONE.get(room, {other}):
            return f"imports {other}, and {room} imports {', '.join(ALONE[room])} only"
        later = ROOMS.index(other) > ROOMS.index(room)
        return f"imports {other}, which is a later room" if later else None
    known = next(
        (each for each in sorted(OUTSIDE, reverse=True) if f"{target}.".startswith(f"{each}.")), top
    )
    if known not in OUTSIDE:
        return f"imports {known}, which no room may"
    allowed = OUTSIDE[known]
    return None if allowed is None or room in allowed else f"imports {known}, only for {allowed}"


def imports_in(module, source, is_package=False):
    """(target, function, line) of each import."""
    imports = Imports(module, is_package)
    imports.visit(ast.parse(source))
    return imports.found


def faults(module, imports):
    """A line for each import of `module` that breaks the order."""
    if room_of(module) not in ROOMS:
        return [f"{module} is in no room: give it a place in ROOMS"]
    return [
        f"{module}:{line} {reason}"
        for target, function, line in imports
        if (reason := fault(module, target, function))
    ]


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "labkit").rglob("*.py"))
}


@cache
def imports_of(module):
    """(target, function, line) of a file of labkit."""
    path = MODULES[module]
    return imports_in(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")


def test_a_module_imports_only_from_rooms_before_its_own():
    assert [line for each in MODULES for line in faults(each, imports_of(each))] == []


def test_who_only_uses_an_engine_needs_no_web_server():
    server = {f"labkit.serving.{name}" for name in ("server", "openai_api", "guard")}
    importing = {
        module
        for module in MODULES
        for target, function, _ in imports_of(module)
        if not function
        and {target, target.partition(".")[0]} & {"fastapi", "pydantic", "uvicorn", *server}
    }
    assert importing == server


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("labkit.comm.group", "import labkit.launch.run", "imports launch, which is a later room"),
        ("labkit.comm.group", "from labkit import run", "imports launch"),
        ("labkit.comm.group", "from ..launch import run", "imports launch"),
        ("labkit.launch.run", "from labkit import viz", "imports viz"),
        ("labkit.launch.run", "from .. import viz", "imports viz"),
        ("labkit.launch.run", "def f():\n    from labkit.viz import timeline", "imports viz"),
        ("labkit.launch.run", "import_module('labkit.viz')", "imports viz"),
        ("labkit.launch.run_result", "from labkit import viz", "imports viz"),
        (
            "labkit.launch.run_result",
            "class Run:\n    def f(self):\n        import labkit.viz",
            "viz",
        ),
        ("labkit.launch.run", "from labkit import check", "imports grade"),
        ("labkit.calc.traffic", "from labkit.comm import Group", "calc imports arguments only"),
        ("labkit.launch.run", "import torch.distributed as dist", "imports torch.distributed"),
        ("labkit.launch.run", "from torch import distributed", "imports torch.distributed"),
        ("labkit.launch.run", "from torch.distributed.nn import x", "imports torch.distributed"),
        ("labkit.launch.run", "import torch\ntorch.distributed.barrier()", "torch.distributed"),
        ("labkit.zero.zero3", "import torch.distributed.checkpoint", "only for {'checkpoint'}"),
        ("labkit.checkpoint.dcp", "import torch.distributed.tensor", "imports torch.distributed"),
        ("labkit.grade.engine", "from rich.table import Table", "imports rich"),
        ("labkit.viz.lanes", "from IPython.display import display", "imports IPython"),
        ("labkit.train", "import pandas", "imports pandas, which no room may"),
        ("labkit.notebook.drills", "import labkit.course.zero.drills", "engines find"),
        ("labkit.utils", "", "is in no room"),
    ],
)
def test_a_forbidden_import_is_found(module, source, reason):
    (line,) = faults(module, imports_in(module, source))
    assert reason in line


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "labkit.launch.run_result",
            "class Run:\n    def show(self):\n        from labkit import viz",
        ),
        ("labkit.train", "from labkit import Group\nfrom .model import GPT\nimport torch.nn as nn"),
        ("labkit.calc.plan", "from .traffic import ring\nfrom labkit.calc import units"),
        ("labkit.comm.group", "from torch.distributed import ReduceOp\nfrom . import checks"),
        ("labkit.course.zero.drills", "from labkit.course.memory import drills"),
        ("labkit.cli", "import typer, rich\nfrom labkit import grade, run"),
    ],
)
def test_an_allowed_import_is_not(module, source):
    assert faults(module, imports_in(module, source)) == []


@pytest.mark.parametrize(("module", "function"), EXCEPTIONS)
def test_an_exception_is_made_for_nothing_that_is_gone(module, function):
    imported = {room_of(target) for target, where, _ in imports_of(module) if where == function}
    assert imported >= EXCEPTIONS[module, function]


def offered_later():
    """(package, name) of each name that labkit.lazy loads when it is used."""
    for package, path in MODULES.items():
        if path.name == "__init__.py" and ("labkit.lazy", "", ANY) in imports_of(package):
            yield from ((package, name) for name in importlib.import_module(package).__all__)


def test_no_module_takes_the_place_of_a_name_that_loads_later():
    # Importing labkit.viz.timeline would set labkit.viz.timeline, to the module.
    names = list(offered_later())
    modules = {f"{package}.{name}" for package, name in names} & set(MODULES)
    assert ("labkit.viz", "timeline") in names
    assert modules == {
        "labkit.comm", "labkit.launch", "labkit.measure", "labkit.notebook.moving",
        "labkit.viz.chrome_trace",
    }  # fmt: skip


def loop_in(imports):
    """Files of which each imports the one before it, the first one also at the end; or []."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_each_other_in_a_loop():
    imports = {
        module: {target for target, _, _ in imports_of(module) if target in MODULES} - {module}
        for module in MODULES
    }
    assert loop_in(imports) == []


def test_a_loop_is_found():
    assert loop_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) in (
        ["a", "c", "b", "a"],
        ["b", "a", "c", "b"],
        ["c", "b", "a", "c"],
    )

"""pyproject.toml, constraints.txt and environment.yml describe one environment."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from scripts import check_python, pins

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
PIN_LINES = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
]
PINS = dict(line.split("==") for line in PIN_LINES)


def disagreements(requirements, versions):
    """Requirements that have no version among `versions`, or one outside their range."""
    found = []
    for requirement in requirements:
        version = versions.get(canonicalize_name(requirement.name))
        if version is None:
            found.append(f"{requirement.name} has no pin")
        elif not requirement.specifier.contains(version):
            found.append(f"{requirement} does not allow {version}")
    return found


def test_every_dependency_is_pinned_within_its_range():
    assert disagreements(pins.declared(), PINS) == []


def test_a_missing_and_a_forbidden_pin_are_seen():
    wanted = [Requirement("torch>=2.9"), Requirement("Rich>=13")]
    assert disagreements(wanted, {"torch": "2.8.0"}) == [
        "torch>=2.9 does not allow 2.8.0",
        "Rich has no pin",
    ]


def test_what_the_dependencies_lead_to_is_pinned_too():
    installed, elsewhere = pins.closure(pins.declared())
    assert (installed.keys() | elsewhere.keys()) - PINS.keys() == set()


def test_pins_are_exact_sorted_and_of_no_local_build():
    assert [Requirement(line).name for line in PIN_LINES] == sorted(PINS)
    for line in PIN_LINES:
        assert str(Requirement(line).specifier) == f"=={PINS[Requirement(line).name]}"
        assert not {"+", "*", "@", ";"} & set(line)
    assert "labkit" not in PINS
    assert PINS["torch"] == "2.13.0"


def test_the_package_itself_needs_only_torch_and_cloudpickle():
    needed = {Requirement(line).name for line in PYPROJECT["project"]["dependencies"]}
    assert needed == {"torch", "cloudpickle"}


def test_the_oldest_python_is_the_same_everywhere():
    oldest = ".".join(map(str, check_python.NEEDED))
    assert PYPROJECT["project"]["requires-python"] == f">={oldest}"
    assert pins.PYTHONS[0] == oldest
    assert f"{oldest}.0" == pins.OLDEST_PYTHON
    assert PYPROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def test_whatever_is_imported_is_declared():
    of_module = packages_distributions()
    declared = {canonicalize_name(requirement.name) for requirement in pins.declared()} | {"labkit"}
    undeclared = {
        f"{path.relative_to(ROOT)} imports {name}"
        for folder in ("labkit", "scripts", "benchmarks", "tests", "solutions")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"^ *(?:from|import) (\w+)", path.read_text("utf-8"), re.MULTILINE)
        if not (ROOT / name).is_dir()  # another package may have a folder of this name
        and name in of_module
        and not declared & {canonicalize_name(d) for d in of_module[name]}
    }
    assert undeclared == set()


def test_conda_installs_python_and_torch_for_cpus_and_pip_takes_the_same_pins_for_the_rest():
    lines = ENVIRONMENT["dependencies"]
    conda = [line for line in lines if isinstance(line, str)]
    (pip,) = [line["pip"] for line in lines if isinstance(line, dict)]
    assert sorted(pip) == ["--constraint constraints.txt", "--editable .[lab,serve,rl]"]
    (python,) = [line.removeprefix("python=") for line in conda if line.startswith("python=")]
    assert set(conda) == {f"python={python}", "pip", f"pytorch-cpu={PINS['torch']}"}
    assert python in pins.PYTHONS
    assert SpecifierSet(PYPROJECT["project"]["requires-python"]).contains(f"{python}.0")
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]

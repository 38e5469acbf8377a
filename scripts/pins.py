"""Exact versions of all that the environment needs, printed as constraints.txt.

`make pins` runs this in an environment of its own, made from the ranges of pyproject.toml. It walks
from there through the metadata of what is installed, so nothing that was installed by hand gets in.
pip is asked for two more kinds: what only another system needs (appnope, on macOS), and an older
release of what no longer installs on the very first 3.11, which some Linux systems still ship.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from itertools import product
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
OLDEST_PYTHON = "3.11.0"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = (("linux", "Linux"), ("darwin", "Darwin"))
# They belong to one build of torch, which names their exact versions itself.
OF_ONE_TORCH_BUILD = ("nvidia-", "cuda-", "triton", "pytorch-triton")
HEADER = """\
# Exact versions of all that the environment needs, on Linux and macOS and Python 3.11 to 3.14.
# Written by `make pins` from the ranges in pyproject.toml. A range says what labkit can run with;
# a line here says what it was tested with.
"""


def declared(root: Path = ROOT) -> list[Requirement]:
    """Return every requirement that pyproject.toml names, with all extras and what builds the
    package."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"].values()
    lines = pyproject["build-system"]["requires"] + pyproject["project"]["dependencies"]
    return [Requirement(line) for line in [*lines, *(line for extra in extras for line in extra)]]


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Return whether any system and Python that labkit supports needs it."""
    if requirement.marker is None:
        return True
    for (platform, system), python, extra in product(SYSTEMS, PYTHONS, ["", *extras]):
        environment = {k: str(v) for k, v in default_environment().items()} | {
            "sys_platform": platform,
            "platform_system": system,
            "python_version": python,
            "python_full_version": f"{python}.0",
            "extra": extra,
        }
        if requirement.marker.evaluate(environment):
            return True
    return False


def closure(requirements: list[Requirement]) -> tuple[dict[str, Version], dict[str, SpecifierSet]]:
    """Return all that the requirements lead to: versions found here, and ranges to ask pip
    about."""
    ranges: dict[str, SpecifierSet] = {}
    installed: dict[str, Version] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if name.startswith(OF_ONE_TORCH_BUILD):
            continue
        ranges[name] = ranges.get(name, SpecifierSet()) & requirement.specifier
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if SpecifierSet(found.metadata["Requires-Python"] or "").contains(OLDEST_PYTHON):
            installed[name] = Version(found.version)
        lines = (Requirement(line) for line in found.requires or [])
        waiting += [line for line in lines if applies(line, requirement.extras)]
    return installed, {name: ranges[name] for name in ranges.keys() - installed.keys()}


def newest(ranges: dict[str, SpecifierSet]) -> dict[str, Version]:
    """Return the versions that pip would take on the oldest Python, without taking them."""
    if not ranges:
        return {}
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--no-deps", "--only-binary", ":all:", "--python-version", OLDEST_PYTHON]
    command += ["--target", "nowhere", "--report", "-"]
    command += [f"{name}{specifiers}" for name, specifiers in ranges.items()]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    metadata = [item["metadata"] for item in report["install"]]
    return {canonicalize_name(item["name"]): Version(item["version"]) for item in metadata}


def main() -> None:
    """Print the pins, or say why this Python can't find them."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    if sys.version_info[:2] != (3, 11):
        raise SystemExit(
            f"pins found on Python {sys.version_info[0]}.{sys.version_info[1]} may not install on "
            "3.11, the oldest that labkit supports: make pins PYTHON=python3.11"
        )
    installed, missing = closure(declared())
    pins = installed | newest(missing)
    print(HEADER + "\n".join(f"{name}=={pins[name].public}" for name in sorted(pins)))


if __name__ == "__main__":
    main()

"""What is installed: versions, and packages that are missing or too old."""

import platform
import re
from collections.abc import Callable, Iterable
from importlib import metadata

from labkit.launch.machine.checkup.finding import Finding, Level

_SHOWN = ("torch", "labkit", "jupyterlab")
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?.*")
VersionOf = Callable[[str], str]


def versions(version_of: VersionOf = metadata.version) -> Finding:
    """One line for a bug report."""
    found = [f"{name} {_version(name, version_of) or 'missing'}" for name in _SHOWN]
    python = f"Python {platform.python_version()}"
    return Finding("versions", ", ".join([python, *found, platform.platform()]))


def packages(
    version_of: VersionOf = metadata.version, required: Iterable[str] | None = None
) -> Finding:
    """Whether all that the lab asks for (pyproject.toml, its extra `lab`) is here and new enough.

    required: requirements such as `rich>=13.7; extra == "lab"`; labkit's own by default.
    """
    lines = list(_own_requirements() if required is None else required)
    if not lines:
        return Finding(
            "packages", "labkit is not installed as a package, so nothing to compare with"
        )
    needed = [line for line in lines if "extra ==" not in line or re.search("extra == .lab", line)]
    faults = [fault for line in needed if (fault := _fault(line, version_of))]
    if not faults:
        return Finding("packages", f"all {len(needed)} that the lab needs")
    return Finding(
        "packages",
        "; ".join(faults),
        Level.WARNING,
        "notebooks, pictures or commands that use them fail; labkit.run itself needs only torch "
        "and cloudpickle",
        'make lab (or, in an environment of your own, pip install "labkit[lab]")',
    )


def _fault(requirement: str, version_of: VersionOf) -> str:
    """What is wrong with one package; empty where nothing is."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        return ""
    name, least = match.groups()
    version = _version(name, version_of)
    if version is None:
        return f"{name} is missing"
    if least and _numbers(version) < _numbers(least):
        return f"{name} is {version}, older than {least}"
    return ""


def _version(name: str, version_of: VersionOf) -> str | None:
    try:
        return version_of(name)
    except metadata.PackageNotFoundError:
        return None


def _own_requirements() -> list[str]:
    try:
        return metadata.requires("labkit") or []
    except metadata.PackageNotFoundError:
        return []


def _numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu as (2, 13, 0): enough to compare with a least version."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))

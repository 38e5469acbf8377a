"""The evidence of each subject, under the name of its folder, imported when a proof uses it.

runs.collectives.ring_sent_bytes(4, 16_000)     labkit/course/collectives/evidence.py
"""

from typing import Any

from labkit.grade.catalog import load_modules, load_subjects


class _Evidence:
    """The functions that the evidence of a subject defines."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._modules = load_modules(subject, "evidence")

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"labkit/course/{self._subject}/evidence defines no {name}")


def __getattr__(name: str) -> _Evidence:
    if name not in load_subjects():
        raise AttributeError(f"there is no labkit/course/{name}")
    return _Evidence(name)

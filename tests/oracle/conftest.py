"""Tests of this folder ask for values and counts, and share ranks."""

from tests.warm_ranks import runs_on_warm_ranks  # noqa: F401

"""What all tests share: whose code `tests/exercises` grades, a home of their own, and speed."""

from pathlib import Path

import cloudpickle
import pytest

ROOT = Path(__file__).parents[1]


def pytest_addoption(parser):
    parser.addoption(
        "--target",
        choices=("mine", "solutions"),
        default="mine",
        help="what tests/exercises grades: your own files in exercises/, or the solutions",
    )


def pytest_collection_finish(session):
    # By value: ranks need not import pytest and the test module, which takes them a second.
    for module in {item.module for item in session.items if getattr(item, "module", None)}:
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture(autouse=True, scope="session")
def _home_of_the_tests(tmp_path_factory):
    """Tests do not write into the progress of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(tmp_path_factory.mktemp("labkit-home")))
        yield

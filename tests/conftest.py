"""Shared by all tests: a home folder, the same inputs of graders each time, and speed."""

import functools
import importlib
import itertools
import multiprocessing
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
import zlib
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import hypothesis
import pytest

ROOT = Path(__file__).parents[1]

# A shell's script starts what it puts into the background (`make test &`) with SIGINT ignored. All
# that is started from here hears SIGINT all the same: workers, the fork server, programs, kernels.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported, and for kernels and programs that tests start, too; ranks have one
# thread anyway. Tests run side by side: a second thread finds its core taken, and the first one
# spins until the other has had its turn, 10 ms for the softmax of ten numbers.
os.environ["OMP_NUM_THREADS"] = "1"

# A run without `device=` would choose the GPUs of this machine, and most tests are of the CPU.
if "--gpu" not in sys.argv:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Before labkit is imported, which adds to it what ranks are forked from. A rank of a test imports
# these before the code under test begins, in 20 ms (graders) or 60 (pytest); there are thousands.
PRELOADED = ["labkit.grade.grader", "labkit.grade.harness", "pytest"]
multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)


def _submodules_in(code, dependencies):
    """Modules that `code` names, inside those of `dependencies`.

    cloudpickle asks all of 2,000 imported modules, for every function: a millisecond each time.
    """
    inside = [each for each in dependencies if isinstance(each, ModuleType) and each.__package__]
    num_given = len(inside)
    for package in inside:  # which grows meanwhile
        names = (f"{package.__name__}.{name}" for name in code.co_names)
        inside += [sys.modules[name] for name in names if name in sys.modules]
    return inside[num_given:]


cloudpickle.cloudpickle._find_imported_submodules = _submodules_in

# The same examples each time, as with graders below; and how long one takes says nothing here.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")

# Files of tests/unit that take longer than 4 s.
SLOW = (
    "bank bare_machine checker checkup cli_calls closing footprint measure memory_calculator mesh "
    "notebook_widgets pipeline_calculator planner_plan progress_exchange progress_practice "
    "progress_store run saves serving_server simulation_weeks viz_schedule wheel"
).split()


def pytest_addoption(parser):
    parser.addoption(
        "--fast",
        action="store_true",
        help="skip what launches more than two ranks, and files that take longer than 4 s",
    )
    parser.addoption(
        "--gpu",
        action="store_true",
        help="let tests see this machine's GPUs: for those that skip because they need one",
    )
    parser.addoption(
        "--rehearse-nccl",
        action="store_true",
        help="run tests/oracle and tests/traffic by nccl's rules: see tests/rehearsal.py",
    )
    parser.addoption(
        "--nightly",
        action="store_true",
        help="run the random programs that `make test` leaves out: test_no_false_verdicts.py",
    )


def pytest_configure(config):
    """One folder for all that is temporary: a kernel that is killed leaves the one of its sockets.

    Its name is short, since the path of a socket may not be longer than 100 letters.
    """
    if worker := getattr(config, "workerinput", None):
        own = worker["workerid"]
    else:
        own = "t"
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="t")
        os.chmod(tempfile.tempdir, 0o1777)  # as /tmp: a test asks as another user
        # Last of all: multiprocessing removes its own folder, which is in it, with priority -100.
        Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)
    config.option.basetemp = os.path.join(tempfile.gettempdir(), own)
    # Tests do not write into the progress of whoever runs them; neither do notebooks, which are run
    # without fixtures.
    os.environ["LABKIT_HOME"] = os.path.join(tempfile.gettempdir(), f"{own}-home")


def _length(scope):
    """Return a number that is larger for a part of the suite that takes one worker longer."""
    if "/" not in scope:
        return 3  # a whole folder, and the runs of the bank
    name = Path(scope).stem.removeprefix("test_")
    if not scope.startswith("tests/unit/"):
        return 2 if scope.endswith(".ipynb") or name in SLOW else 1
    return 1 if name in SLOW else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file's tests share launches, so they stay together; those of exercises are too many.

    The longest parts start first. A long part that starts last leaves three of four workers idle.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFileOrExercise(LoadScopeScheduling):
        def _assign_work_unit(self, node):
            longest = max(self.workqueue, key=_length)  # one worker takes the longest
            self.workqueue.move_to_end(longest, last=False)
            super()._assign_work_unit(node)

        def _split_scope(self, nodeid):
            # One lab and one browser for all pages; namespaces of hosts have names.
            if room := re.match(r"tests/(browser|hosts)/", nodeid):
                return room[1]
            if re.search("/test_(bank|runs_of_the|evidence_of|card_runs|claims_court)", nodeid):
                return "runs of the bank"  # each is launched once per process
            file = nodeid.partition("::")[0]
            mistake = re.search(r"test_exercises.py::.*\[(\w+)", nodeid)
            return f"{file} of {mistake[1]}" if mistake else file

    return ByFileOrExercise(config, log)


def pytest_ignore_collect(collection_path, config):
    is_file = re.fullmatch(r"test_\w+\.py", collection_path.name)
    if is_file and config.option.fast and collection_path.stem[5:] in SLOW:
        return True
    return None


def pytest_collection_finish(session):
    # By value: ranks need not import pytest and the test module, which takes them a second.
    for module in {item.module for item in session.items if getattr(item, "module", None)}:
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard_as_before():
    """A command of labkit, called in this process, leaves SIGINT to the end of the process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _inputs_of_graders_are_those_of_the_last_run(request):
    """A learner gets new ones each time. Here a failure must be there tomorrow, too."""
    draws = itertools.count()

    def drawn(below):
        return zlib.crc32(f"{request.node.name} {next(draws)}".encode()) % below

    # Its own patch: the fixture `monkeypatch`, were it asked for here, would be set up before a
    # module's own fixtures, and so undo what a test changed only after they have looked.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbelow", drawn)
        yield


@pytest.fixture(autouse=True, scope="session")
def _at_most_two_ranks(request):
    """With --fast, what launches more ranks is skipped when it comes to that."""
    if not request.config.getoption("--fast"):
        yield
        return
    run = importlib.import_module("labkit.launch.run")
    specs = run._specs

    def of_few(world_size, *others):
        if world_size > 2:
            pytest.skip(f"launches {world_size} ranks, and this is --fast")
        return specs(world_size, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_specs", of_few)
        yield


@functools.cache
def _start_the_fork_server():
    """And wait until it has imported all that it preloads."""
    importlib.import_module("labkit.launch.rank_process").warm_up()
    process = multiprocessing.get_context("forkserver").Process(target=int)
    process.start()
    process.join()


@pytest.fixture(autouse=True, scope="session")
def _a_runs_time_begins_when_the_fork_server_is_there():
    """On a busy machine it took 80 s to start, of the 120 s of the first run in a process."""

    def monotonic():
        _start_the_fork_server()
        return time.monotonic()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("labkit.launch.run", "labkit.launch.session.ranks"):
            if module := sys.modules.get(name):
                patch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
        yield


@pytest.fixture(autouse=True, scope="session")
def _a_rank_has_a_minute_to_say_where_it_is():
    """The first question makes it import: more than the usual 6 s, on a slow machine under load."""
    with pytest.MonkeyPatch.context() as patch:
        if listen := sys.modules.get("labkit.launch.listen"):
            patch.setattr(listen, "PATIENCE_S", 60.0)
        yield

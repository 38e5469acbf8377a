"""The driver's side of a run hears every death, at whatever moment of the start it comes."""

import multiprocessing
from types import SimpleNamespace

from labkit.doctor.verdict import Stage
from labkit.launch.payload import RunDirectory
from labkit.launch.rank_process import Rank
from labkit.launch.supervise import Supervisor


class NoOutput:
    """The output of a rank that prints nothing."""

    ended, pipe = True, None

    def read(self):
        pass


def a_rank_that_is_ready():
    """The driver's view of it, and its own end of the pipe to the driver."""
    control, its_control = multiprocessing.Pipe()
    its_control.send("ready")
    sentinel = multiprocessing.Pipe(duplex=False)
    process = SimpleNamespace(sentinel=sentinel[0], kept=sentinel[1], join=lambda timeout_s: None)
    return Rank(SimpleNamespace(control=control, process=process), NoOutput()), its_control


def test_a_rank_that_dies_before_it_gets_the_word_to_go_is_dead_and_the_others_go(tmp_path):
    (dying, its_control), (other, others_control) = a_rank_that_is_ready(), a_rank_that_is_ready()
    its_control.close()
    supervisor = Supervisor([dying, other], RunDirectory.at(tmp_path))
    assert supervisor.listen(10)
    assert others_control.recv() == "go"
    assert supervisor.listen(10)
    assert (dying.stage, other.stage) == (Stage.DIED, Stage.RUNNING)

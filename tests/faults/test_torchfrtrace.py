"""torch's own analyzer of Flight Recorder dumps reads what the ranks of a hung run leave."""

import gc
import pickle

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.types import MatchState

from labkit import Deadlock, Mismatch, run

pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="older analyzers take records of nccl only"
)
RIGHT_ROWS, WRONG_ROWS = 4, 3


def calls_less_often(world):
    with world.split(0) as closed:  # torch forgets who its members were
        closed.barrier()
    group = world.split(0)
    for _ in range(1 if world.rank == 1 else 2):
        group.all_reduce(torch.ones(3))  # <-


def passes_another_shape(world):
    dist.barrier()
    dist.all_reduce(torch.ones(WRONG_ROWS if world.rank == 1 else RIGHT_ROWS))


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Return torchfrtrace's verdict on a program: the last collective that it looks at."""

    def found(program, error):
        monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/dumps/rank_")
        with pytest.raises(error):
            run(program, 3, timeout=600, stall=0.5)
        fr_trace.main([f"{tmp_path}/dumps", "--output", f"{tmp_path}/found"])
        return pickle.loads((tmp_path / "found").read_bytes())[1].collectives[-1]

    yield found
    gc.enable()  # the analyzer switches it off


def test_it_names_the_rank_that_a_groups_collective_misses(found):
    collective = found(calls_less_often, Deadlock)
    assert (collective.collective_name, collective.collective_seq_id) == ("gloo:all_reduce", 2)
    assert collective.pg_desc.endswith("world.2.0") and collective.missing_ranks == {1}
    with open(__file__) as file:
        marked = [n for n, line in enumerate(file, start=1) if line.rstrip().endswith("# <-")]
    lines = {
        frame["line"] for frame in collective.collective_frames if frame["filename"] == __file__
    }
    assert lines == set(marked)


def test_it_names_the_rank_that_passes_torch_another_shape(found):
    collective = found(passes_another_shape, Mismatch)
    assert (collective.collective_name, collective.collective_seq_id) == ("gloo:all_reduce", 2)
    # It compares the others with the rank whose file the folder lists first.
    is_first = collective.input_sizes == [[WRONG_ROWS]]
    assert set(collective.mismatch_collectives) == ({0, 2} if is_first else {1})
    for other in collective.mismatch_collectives.values():
        assert other.input_sizes == [[RIGHT_ROWS if is_first else WRONG_ROWS]]
        assert other.type_of_mismatch.state is MatchState.SIZE_OR_SYNTAX_MISMATCH

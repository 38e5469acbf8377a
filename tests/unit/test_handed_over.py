"""What torch's record says is taken over before torch overwrites it, or it is said to be lost."""

import pytest

from labkit.comm import flight_recorder, recorded
from labkit.comm.past_the_groups import PastTheGroups
from labkit.comm.recorded import HandedOver


class Torch:
    """The Flight Recorder: the last `capacity` entries, and how many there were."""

    def __init__(self, capacity):
        self.capacity, self.entries, self.num_reads = capacity, [], 0

    def issue(self, num, dtype="Float"):
        for _ in range(num):
            n = len(self.entries)
            entry = {"record_id": n, "pg_id": 0, "process_group": ("0", "default_pg")}
            entry |= {"collective_seq_id": n + 1, "profiling_name": "gloo:all_reduce"}
            self.entries.append(entry | {"input_sizes": [[3]], "input_dtypes": [dtype]})

    def dump(self, includeCollectives=True, includeStackTraces=True):
        self.num_reads += includeCollectives
        status = {"0": {"last_enqueued_collective": len(self.entries)}}
        return {"pg_status": status, "entries": self.entries[-self.capacity :]}


@pytest.fixture
def torchs(monkeypatch):
    recorder = Torch(capacity=100)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    monkeypatch.setattr(flight_recorder, "_dump", recorder.dump)
    monkeypatch.setattr(flight_recorder.pickle, "loads", lambda dumped: dumped)
    return recorder


def test_what_torch_overwrites_has_been_taken_over_before(torchs):
    past = PastTheGroups()
    torchs.issue(1, "Int")
    for _ in range(50):
        torchs.issue(20)
        past.keep_up(lambda: 0)
    handed_over = past.take(0)
    assert list(handed_over.by_group["torch.distributed"]) == [1] + 1000 * [2]
    assert handed_over.meanings == [("all_reduce", "int32", (3,)), ("all_reduce", "float32", (3,))]
    assert handed_over.num_lost == 0
    assert torchs.num_reads <= 14  # and not at each of 50 looks


def test_what_was_overwritten_unread_is_said_to_be_lost_and_once(torchs):
    past = PastTheGroups()
    torchs.issue(130)
    assert past.take(0).num_lost == 30
    torchs.issue(10)
    assert past.take(0).num_lost == 0


def test_a_program_that_only_uses_groups_has_nothing_read_and_loses_nothing(torchs):
    past, posted = PastTheGroups(), 0
    for _ in range(50):
        torchs.issue(20)
        posted += 20
        past.keep_up(lambda posted=posted: posted)
    assert (past.take(posted), torchs.num_reads) == (HandedOver([], {}), 0)
    torchs.issue(1)  # what was overwritten up to here is a Group's
    assert past.take(posted).num_lost == 0


def test_one_collective_of_torchs_costs_one_reading_whatever_the_groups_do_next(torchs):
    past, posted = PastTheGroups(), 0
    torchs.issue(1, "Int")
    for _ in range(50):
        torchs.issue(20)
        posted += 20
        past.keep_up(lambda posted=posted: posted)
    handed_over = past.take(posted)
    assert (handed_over.num_lost, torchs.num_reads) == (0, 1)
    assert handed_over.meanings[0] == ("all_reduce", "int32", (3,))


def test_while_the_journal_grows_a_look_concludes_nothing(torchs):
    past, counts = PastTheGroups(), iter(range(1000))
    torchs.issue(80)
    past.keep_up(lambda: next(counts))
    assert torchs.num_reads == 0


def handed(*numbers, meanings=(("all_reduce", "int32", (3,)), ("barrier", "", ()))):
    return HandedOver(meanings, {"torch.distributed": numbers})


def test_ranks_number_their_meanings_each_in_its_own_way():
    swapped = (("barrier", "", ()), ("all_reduce", "int32", (3,)))
    assert recorded.differing({0: handed(1, 2, 2), 1: handed(2, 1, 1, meanings=swapped)}) is None
    assert recorded.differing({0: handed(1, 0, 2), 1: handed(1, 1)}) is None  # 0: not known


def test_the_first_collective_that_differs_is_named():
    found = recorded.differing({0: handed(1, 1, 2), 2: handed(1, 2, 2)})
    assert str(found) == (
        "collective #2 of torch.distributed is all_reduce of 3 int32 on rank 0, and barrier on "
        "rank 2"
    )

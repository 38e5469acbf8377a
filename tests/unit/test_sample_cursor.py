"""The cursor's samples, and the audit of logs: any sequence of attempts, and bugs that it finds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.checkpoint import Audit, SampleCursor, SampleLog, audit


def drawn(cursor, num_batches):
    return torch.cat([cursor.next_batch() for _ in range(num_batches)]).tolist()


@given(st.integers(1, 20), st.integers(1, 25), st.integers(0, 3))
def test_each_epoch_has_each_sample_once_and_the_next_another_order(num_samples, batch, seed):
    ids = drawn(SampleCursor(num_samples, batch, seed), 3 * num_samples)
    epochs = [ids[i : i + num_samples] for i in range(0, 3 * num_samples * batch, num_samples)]
    assert all(sorted(epoch) == list(range(num_samples)) for epoch in epochs)
    if num_samples > 10:
        assert epochs[0] != epochs[1]


def test_a_batch_across_the_end_of_an_epoch_has_samples_of_both():
    cursor = SampleCursor(10, 4)
    first, second = drawn(SampleCursor(10, 10), 1), drawn(SampleCursor(10, 10), 2)[10:]
    cursor.taken = 8
    ids = cursor.next_batch()
    assert ids.dtype == torch.int64
    assert ids.tolist() == first[8:] + second[:2]


def test_a_loaded_position_counts_whatever_was_drawn_before():
    cursor, other = SampleCursor(50, 7), SampleCursor(50, 7)
    drawn(cursor, 9)
    drawn(other, 2)
    other.load_state_dict(cursor.state_dict())
    assert drawn(other, 3) == drawn(cursor, 3)


def test_the_batch_may_change_and_the_samples_go_on():
    cursor, smaller = SampleCursor(50, 8), SampleCursor(50, 6)
    drawn(cursor, 3)
    smaller.load_state_dict(cursor.state_dict())
    assert drawn(smaller, 4) == drawn(cursor, 3)


@pytest.mark.parametrize("key, other", [("num_samples", 51), ("seed", 4)])
def test_another_order_of_samples_is_refused_with_both_numbers(key, other):
    state = SampleCursor(50, 8, 3).state_dict()
    cursor = SampleCursor(**{"num_samples": 50, "batch": 8, "seed": 3, key: other})
    with pytest.raises(ValueError, match=rf"{key}={state[key]}.*{key}={other}"):
        cursor.load_state_dict(state)
    assert cursor.taken == 0


JOB = {"num_samples": 40, "batch": 5, "seed": 2}
ATTEMPT = st.tuples(st.integers(1, 7), st.integers(0, 6), st.integers(0, 4))
"""World size, full steps until the kill, and how many ranks have logged the step of the kill."""


def log_attempts(folder, attempts, num_steps, save_every, *, restart=None, share=None):
    """Log what a job of these attempts and a last one, on 2 ranks, logs.

    restart: the state that an attempt loads, from the saved one. share: a rank's ids of a batch.
    """
    saved = 0, SampleCursor(**JOB).state_dict()
    share = share or (lambda ids, rank, size: ids.tensor_split(size)[rank])
    for attempt, (size, num_full, num_last) in enumerate([*attempts, (2, num_steps, 0)]):
        logs = [SampleLog(folder, attempt, rank) for rank in range(size)]
        first, state = saved
        cursor = SampleCursor(**JOB)
        cursor.load_state_dict(restart(state) if restart and first else state)
        killed_at = min(first + num_full, num_steps)
        for step in range(first, killed_at + (killed_at < num_steps)):
            ids = cursor.next_batch()
            for rank, log in enumerate(logs[: num_last if step == killed_at else size]):
                log.write(step, share(ids, rank, size))
            if step < killed_at and (step + 1) % save_every == 0:
                saved = step + 1, cursor.state_dict()
        if num_last < size:
            logs[num_last]._file.write(f"{killed_at} 1 2")  # torn
        for log in logs:
            log._file.close()


@given(st.lists(ATTEMPT, max_size=4), st.integers(1, 15), st.integers(1, 4))
def test_any_sequence_of_attempts_uses_each_sample_exactly_once(
    tmp_path_factory, attempts, num_steps, save_every
):
    folder = tmp_path_factory.mktemp("logs")
    log_attempts(folder, attempts, num_steps, save_every)
    assert audit(folder, **JOB)[:3] == (num_steps, [], [])


def test_void_lines_are_counted_and_no_logs_are_no_steps(tmp_path):
    assert audit(tmp_path, **JOB) == Audit(0, [], [], 0)
    log_attempts(tmp_path, [(4, 4, 1), (3, 0, 2)], 6, 3)
    # Repeated: step 3 of attempt 0 on 4 ranks, its step 4 on one, and step 3 of attempt 1 on 2.
    assert audit(tmp_path, **JOB) == Audit(6, [], [], 7)


BATCHES = [sorted(ids) for ids in torch.tensor(drawn(SampleCursor(**JOB), 8)).view(8, 5).tolist()]
# The job has 6 steps, and its second attempt begins with step 3: by how many samples it is wrong,
# and which batches are lost and used twice.
WRONG_POSITIONS = {
    "begins at 0": (-15, [3, 4, 5], [0, 1, 2]),
    "skips a batch": (5, [3], [6]),
    "uses a batch again": (-5, [5], [2]),
}


@pytest.mark.parametrize("name", WRONG_POSITIONS)
def test_a_wrong_position_after_a_restart_is_found(tmp_path, name):
    wrong, *lost_and_twice = WRONG_POSITIONS[name]
    restart = lambda state: {**state, "taken": state["taken"] + wrong}  # noqa: E731
    log_attempts(tmp_path, [(4, 4, 0)], 6, 3, restart=restart)
    found = audit(tmp_path, **JOB)
    for ids, batches in zip((found.lost, found.duplicated), lost_and_twice, strict=True):
        assert ids == sorted(x for batch in batches for x in BATCHES[batch])


def test_a_share_that_is_right_at_even_sizes_only_is_found(tmp_path):
    def share(ids, rank, size):
        each = len(ids) // size
        return ids[rank * each : (rank + 1) * each]

    log_attempts(tmp_path, [], 4, 1, share=share)  # 5 samples on 2 ranks: the last is nobody's
    ids = SampleCursor(**JOB)
    expected = sorted(ids.next_batch().tolist()[4] for _ in range(4))
    assert audit(tmp_path, **JOB)[1:3] == (expected, [])


def test_a_rank_that_goes_back_within_an_attempt_begins_again(tmp_path):
    log = SampleLog(tmp_path, 0, 0)
    for step in (0, 1, 2, 1, 2):
        log.write(step, BATCHES[step])
    assert audit(tmp_path, **JOB) == Audit(3, [], [], 2)


def test_each_start_is_an_attempt(tmp_path):
    SampleLog(tmp_path, 0, 1)
    with pytest.raises(FileExistsError, match="samples-0000-0001"):
        SampleLog(tmp_path, 0, 1)

"""Corpora and batches: what text they accept, and that ranks cut the serial batch exactly."""

import gzip
import zlib

import pytest
import torch

from labkit import run
from labkit.data import Batches, Corpus


def corpus_of(text: bytes) -> Corpus:
    return Corpus("a test", torch.tensor(list(text), dtype=torch.uint8))


COUNTING = corpus_of(bytes(range(200)))


def test_the_standard_library_is_python_source_of_the_asked_size():
    corpus = Corpus.standard_library(50_000)
    assert len(corpus) == 50_000
    assert b"class ABCMeta" in corpus.bytes_N.numpy().tobytes()


def test_the_standard_library_is_read_once_per_process():
    assert Corpus.standard_library() is Corpus.standard_library()


def standard_library_bytes(world) -> bytes:
    return Corpus.standard_library().bytes_N.numpy().tobytes()


def test_every_rank_reads_the_same_standard_library():
    values = run(standard_library_bytes, 2).values
    assert values[0] == values[1] == standard_library_bytes(None)


def test_the_text_is_the_same_on_every_python():
    """The text is Python 3.11.7's; numbers of notebooks and cards come from it."""
    text = standard_library_bytes(None)
    assert (len(text), zlib.crc32(text)) == (1_000_000, 4007543080)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_text_file_becomes_its_bytes(tmp_path, encoding):
    text = "Grüße aus Köln.\n\tC'était l'été.\r\n" * 10
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    corpus = Corpus.from_file(tmp_path / "a.txt")
    assert corpus.bytes_N.numpy().tobytes() == text.encode(encoding)


def test_a_long_file_is_cut_and_not_read_to_its_end(tmp_path):
    (tmp_path / "long.txt").write_bytes(b"0123456789" * 100)
    assert Corpus.from_file(tmp_path / "long.txt", max_bytes=25).bytes_N.numel() == 25


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("some text")
    assert len(Corpus.from_file("~/a.txt")) == 9


@pytest.mark.parametrize(
    "content",
    [
        b"text and text and text" * 100 + b"\x00 and a single NUL",
        "UTF-16 has a NUL in every other byte".encode("utf-16"),
        bytes(range(1, 256)) * 4,
    ],
)
def test_a_binary_file_is_refused(tmp_path, content):
    (tmp_path / "binary").write_bytes(content)
    with pytest.raises(ValueError, match="binary is not text"):
        Corpus.from_file(tmp_path / "binary")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="empty.txt is empty"):
        Corpus.from_file(tmp_path / "empty.txt")


def test_a_device_is_refused_as_it_might_never_end():
    with pytest.raises(ValueError, match="/dev/null"):
        Corpus.from_file("/dev/null")


def test_a_text_shorter_than_a_sequence_and_its_target_is_refused():
    with pytest.raises(ValueError, match="64 bytes.*context=64 .*65"):
        Batches(corpus_of(b"x" * 64), num_sequences=2, context=64)


def test_a_text_of_one_sequence_is_enough():
    batch = Batches(corpus_of(b"abcde"), num_sequences=2, context=4).at(0)
    assert batch.inputs_BT.tolist() == [[97, 98, 99, 100]] * 2
    assert batch.targets_BT.tolist() == [[98, 99, 100, 101]] * 2


def test_targets_are_the_next_tokens():
    batch = Batches(COUNTING, num_sequences=5, context=8).at(3)
    assert torch.equal(batch.targets_BT, batch.inputs_BT + 1)
    assert batch.inputs_BT.dtype == batch.targets_BT.dtype == torch.int64


def test_every_place_of_the_text_is_drawn():
    batches = Batches(corpus_of(bytes(range(10))), num_sequences=100, context=4)
    assert set(batches.at(0).inputs_BT[:, 0].tolist()) == set(range(6))


def test_a_batch_depends_on_seed_and_step_alone():
    drawn = {}
    for seed in (0, 1):
        for step in (0, 1, 2):
            batches = Batches(COUNTING, num_sequences=4, context=8, seed=seed)
            torch.rand(1)  # someone else's numbers in between
            assert torch.equal(batches.at(step).inputs_BT, batches.at(step).inputs_BT)
            drawn[seed, step] = tuple(batches.at(step).inputs_BT.flatten().tolist())
    assert len(set(drawn.values())) == 6


def test_drawing_a_batch_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Batches(COUNTING, num_sequences=4, context=8).at(0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("num_sequences", [1, 7, 8])
def test_the_shares_of_all_ranks_are_the_serial_batch(num_sequences, size):
    batch = Batches(COUNTING, num_sequences, context=8).at(0)
    shares = [batch.share(rank, size) for rank in range(size)]
    assert torch.equal(torch.cat([share.inputs_BT for share in shares]), batch.inputs_BT)
    assert torch.equal(torch.cat([share.targets_BT for share in shares]), batch.targets_BT)


def test_the_first_ranks_take_what_does_not_divide():
    batch = Batches(COUNTING, num_sequences=6, context=8).at(0)
    assert [len(batch.share(rank, 4)) for rank in range(4)] == [2, 2, 1, 1]
    assert [len(batch.share(rank, 9)) for rank in range(9)] == [1] * 6 + [0] * 3


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_share_of_no_rank_is_refused(rank):
    batch = Batches(COUNTING, num_sequences=7, context=8).at(0)
    with pytest.raises(ValueError, match=f"rank={rank} "):
        batch.share(rank, 4)


def test_a_rank_reads_the_text_once_from_one_small_file(monkeypatch):
    """This costs a rank some milliseconds: benchmarks/launch.py prints them."""
    decompress, sizes = gzip.decompress, []

    def counted(packed):
        sizes.append(len(packed))
        return decompress(packed)

    monkeypatch.setattr(gzip, "decompress", counted)
    Corpus.standard_library.cache_clear()
    assert Corpus.standard_library() is Corpus.standard_library()
    assert len(sizes) == 1 and sizes[0] < 300_000

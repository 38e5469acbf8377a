"""Feeding many ranks: each sample once per epoch, through changes of the number of ranks."""

import threading
from collections import Counter
from functools import cache, partial

import pytest
import torch
from torch.utils.data import DistributedSampler

from labkit import run
from labkit.data import IGNORED
from labkit.data.feed import Feed, Loader, Source, prefetch, share
from labkit.data.order import buffered, full_permutation, shards_per_batch, shuffle_buffer
from labkit.data.packing import (
    PADDING,
    attend_within,
    best_fit,
    concatenated,
    cost,
    packed,
)
from labkit.data.shards import Shards, shards_of, write_shards
from labkit.model import GPT, GPTConfig

NUM_SAMPLES, PER_SHARD, BATCH = 47, 6, 7  # 8 shards, the last of 5; nothing divides


def sample(number):
    return f"sample {number:02} ".encode() * (1 + number % 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards")
    write_shards(path, map(sample, range(NUM_SAMPLES)), PER_SHARD)
    return path


def test_every_sample_is_read_back_by_id_with_any_number_of_open_files(folder):
    for max_open in (1, 3, 8):
        shards = Shards(folder, max_open)
        assert shards.counts == [6] * 7 + [5] and len(shards) == NUM_SAMPLES
        for number in full_permutation(shards.counts, 0, 0).tolist():
            assert shards.read(number) == sample(number)
        shards.close()
        assert shards.read(0) == sample(0)
        shards.close()


def test_a_folder_without_an_index_and_a_sample_that_is_not_there_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        Shards(tmp_path)
    with pytest.raises(FileExistsError, match=r"index\.json"):
        write_shards(folder, [b"more"], 1)
    with pytest.raises(IndexError, match="47"):
        Shards(folder).read(NUM_SAMPLES)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("num_shards", [1, 5, 8, 10, 29])
def test_every_shard_has_one_reader_and_no_rank_has_two_more_than_another(
    num_shards, num_ranks, num_workers
):
    readers = {
        (rank, worker): shards_of(num_shards, rank, num_ranks, worker, num_workers)
        for rank in range(num_ranks)
        for worker in range(num_workers)
    }
    assert sorted(shard for each in readers.values() for shard in each) == [*range(num_shards)]
    of_rank = [sum(len(readers[rank, w]) for w in range(num_workers)) for rank in range(num_ranks)]
    assert max(of_rank) - min(of_rank) <= 1
    assert max(map(len, readers.values())) - min(map(len, readers.values())) <= 1


COUNTS = [100] * 40
ORDERS = {
    "full": full_permutation(COUNTS, 0, 0),
    "shards only": buffered(COUNTS, 0, 0, buffer=1),
    "buffer 100": buffered(COUNTS, 0, 0, buffer=100),
    "buffer 1,000": buffered(COUNTS, 0, 0, buffer=1000),
    "buffer 100, 8 open": buffered(COUNTS, 0, 0, buffer=100, open_shards=8),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_has_each_sample_once(name):
    assert ORDERS[name].sort().values.tolist() == [*range(4000)]


@pytest.mark.parametrize("counts", [[3], [5, 1, 4], [2] * 9, [1, 0, 7]])
@pytest.mark.parametrize("open_shards", [1, 2, 20])
def test_a_buffer_of_any_size_loses_nothing(counts, open_shards):
    for size in (1, 2, 100):
        order = buffered(counts, 1, 2, size, open_shards)
        assert order.sort().values.tolist() == [*range(sum(counts))]
        assert torch.equal(order, buffered(counts, 1, 2, size, open_shards))
    assert not torch.equal(full_permutation([50], 0, 0), full_permutation([50], 0, 1))


def test_a_sample_leaves_the_buffer_at_most_its_size_before_its_turn():
    size = 10
    order = list(shuffle_buffer(range(200), size, torch.Generator().manual_seed(0)))
    assert all(sample < place + size for place, sample in enumerate(order))
    assert max(place - sample for place, sample in enumerate(order)) > size  # late without a limit


def test_a_larger_buffer_and_more_open_shards_mix_more_shards_into_a_batch():
    mixed = {name: shards_per_batch(order, COUNTS, 32) for name, order in ORDERS.items()}
    assert mixed["shards only"] < 1.5 < mixed["buffer 100"] < 8
    assert mixed["buffer 100"] < mixed["buffer 1,000"] < mixed["full"]
    assert mixed["buffer 100, 8 open"] >= 7.9
    # 32 draws from 40 equal shards: 40 (1 - (39/40)^32) different ones
    assert mixed["full"] == pytest.approx(40 * (1 - (39 / 40) ** 32), rel=0.03)


def test_a_full_permutation_opens_shards_again_and_again(tmp_path):
    shards = write_shards(tmp_path, map(sample, range(400)), per_shard=20)
    opened = {}
    for name, order in {
        "full": full_permutation(shards.counts, 0, 0),
        "buffer": buffered(shards.counts, 0, 0, buffer=100, open_shards=4),
    }.items():
        reader = Shards(tmp_path, max_open=20)
        for number in order.tolist():
            reader.read(number)
        fewer = Shards(tmp_path, max_open=4)
        for number in order.tolist():
            fewer.read(number)
        opened[name] = reader.num_opened, fewer.num_opened
        reader.close(), fewer.close()
    assert opened["full"][0] == opened["buffer"][0] == 20
    assert opened["full"][1] > 250


def feed_of(folder, batch=BATCH, seed=3):
    shards = Shards(folder)
    order = partial(buffered, shards.counts, seed, buffer=12, open_shards=2)
    return shards, Feed({"text": Source(len(shards), order)}, batch)


def steps(world, folder, state, num_steps):
    """The samples that this rank reads in some steps, and the state afterwards."""
    shards, feed = feed_of(folder)
    loader = Loader(feed, lambda each: (each.id, shards.read(each.id)), world.rank, world.size)
    if state is not None:
        loader.load_state_dict(state)
    taken = []
    for _, samples in zip(range(num_steps), loader):
        taken.append(samples)
        state = loader.state_dict()
    shards.close()
    return taken, state


@cache
def job(folder, sizes):
    """Attempts of 3, 4, 2, ... steps on these numbers of ranks: the ids of each global batch."""
    batches, state = [], None
    for size, num_steps in sizes:
        values = run(steps, size, args=(folder, state, num_steps)).values
        assert all(each[1] == values[0][1] for each in values)  # one state on all ranks
        state = values[0][1]
        for of_ranks in zip(*(taken for taken, _ in values), strict=True):
            assert max(map(len, of_ranks)) - min(map(len, of_ranks)) <= 1
            batch = [each for of_rank in of_ranks for each in of_rank]
            assert all(text == sample(number) for number, text in batch)
            batches.append([number for number, _ in batch])
    return batches


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_batches_are_the_serial_ones_on_any_number_of_ranks(folder, size):
    assert job(folder, ((size, 8),)) == job(folder, ((1, 8),))


def test_a_job_goes_on_exactly_at_any_step_on_another_number_of_ranks(folder):
    batches = job(folder, ((4, 3), (3, 4), (1, 2), (2, 5)))
    _, feed = feed_of(folder)
    assert batches == [[each.id for each in feed.next_batch()] for _ in range(14)]
    ids = [number for batch in batches for number in batch]  # 98: two epochs and 4 more
    for epoch in (0, 1):
        assert sorted(ids[epoch * NUM_SAMPLES :][:NUM_SAMPLES]) == [*range(NUM_SAMPLES)]


def test_torchs_sampler_repeats_samples_or_leaves_them_out():
    data = range(10)
    for drop_last, expected in ((False, 12), (True, 8)):
        samplers = [DistributedSampler(data, 4, rank, drop_last=drop_last) for rank in range(4)]
        drawn = Counter(number for each in samplers for number in each)
        assert sum(drawn.values()) == expected
        assert len(drawn) == min(expected, 10)  # 2 twice, or 2 not at all


def test_sources_are_mixed_exactly_and_each_has_its_own_epochs():
    weights = {"web": 5.0, "code": 3.0, "books": 0.7}
    sizes = {"web": 11, "code": 7, "books": 3}
    feed = Feed(
        {
            name: Source(sizes[name], partial(full_permutation, [sizes[name]], 0), weight)
            for name, weight in weights.items()
        },
        batch=5,
    )
    drawn, total = {name: [] for name in weights}, sum(weights.values())
    for step in range(1, 200):
        for name, number in feed.next_batch():
            drawn[name].append(number)
        for name, weight in weights.items():
            assert abs(len(drawn[name]) - 5 * step * weight / total) < 1.5
    for name, numbers in drawn.items():
        for start in range(0, len(numbers) - sizes[name] + 1, sizes[name]):
            assert sorted(numbers[start : start + sizes[name]]) == [*range(sizes[name])]


def test_a_position_of_other_sources_and_weights_of_nothing_are_refused():
    source = Source(3, partial(full_permutation, [3], 0))
    feed = Feed({"a": source}, 2)
    with pytest.raises(ValueError, match="num_samples|samples"):
        feed.load_state_dict({"num_samples": {"a": 4}, "taken": {"a": 1}})
    with pytest.raises(ValueError, match="weight"):
        Feed({"a": Source(3, source.order, weight=0)}, 2)
    with pytest.raises(ValueError, match="sources is empty"):
        Feed({}, 2)
    with pytest.raises(ValueError, match="rank=2"):
        Loader(feed, lambda each: each, 2, 2)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_batches_are_read_ahead_and_the_state_is_that_of_the_last_yielded_one(depth):
    read, ready = [], threading.Semaphore(0)

    def reading(each):
        read.append(each.id)
        ready.release()
        return each.id

    order = partial(full_permutation, [50], 0)
    feed = Feed({"a": Source(50, order)}, 1)
    loader = Loader(feed, reading, 0, 1, depth)
    batches = iter(loader)
    for step in range(5):
        assert next(batches) == [order(0)[step].item()]
        for _ in range(depth + 1 if step == 0 else 1):  # the reads that have been started
            assert ready.acquire(timeout=60)
        assert len(read) == step + 1 + depth
        assert feed.taken["a"] == step + 1 + depth  # drawn
        assert loader.state_dict()["taken"]["a"] == step + 1
    batches.close()
    assert next(iter(loader)) == [order(0)[5].item()]  # drawn batches that nobody got come again


def test_an_error_of_a_read_comes_where_its_value_would_have_come():
    found = prefetch([4, 2, 0, 1], lambda x: 8 // x, depth=3)
    assert [next(found), next(found)] == [2, 4]
    with pytest.raises(ZeroDivisionError):
        next(found)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shares_are_those_of_a_tensor(size):
    for count in (0, 2, 7):
        expected = [x.tolist() for x in torch.arange(count).tensor_split(size)]
        assert [share(list(range(count)), rank, size) for rank in range(size)] == expected


LENGTHS = [5, 3, 2, 13, 1, 6, 4, 4]


@pytest.mark.parametrize("pack", [concatenated, best_fit])
def test_each_token_is_packed_once(pack):
    for context in (1, 3, 6, 20):
        sequences = pack(LENGTHS, context)
        found = Counter()
        for sequence in sequences:
            assert 0 < sum(chunk.end - chunk.start for chunk in sequence) <= context
            for document, start, end in sequence:
                found.update((document, token) for token in range(start, end))
        assert found == Counter((d, t) for d, n in enumerate(LENGTHS) for t in range(n))


def test_best_fit_cuts_only_documents_that_are_too_long_and_pads_a_little():
    lengths = torch.randint(1, 100, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    lengths += [300, 257]
    one, other = (cost(pack(lengths, 128), 128) for pack in (concatenated, best_fit))
    assert other.cut == 2 and one.cut > 150
    assert one.padding < 0.005 and other.padding < 0.01


@pytest.mark.parametrize("pack", [concatenated, best_fit])
def test_a_packed_document_has_the_logits_that_it_has_alone(pack):
    config = GPTConfig(vocab=17, context=8, hidden=8, num_heads=2, rotary=True)
    model, alone = (GPT(config, dtype=torch.float64) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(17, (n,), generator=generator) for n in LENGTHS]
    sequences = pack(LENGTHS, 7)
    batch, document_BT = packed(documents, sequences, 7)
    for block in model.blocks:
        block.attention.attend = attend_within(document_BT)
    logits_BTV = model(batch.inputs_BT)
    num_chunks = 0
    for row, sequence in enumerate(sequences):
        at = 0
        for document, start, end in sequence:
            expected = alone(documents[document][None, start:end])[0]
            found = logits_BTV[row, at : at + end - start]
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
            targets = batch.targets_BT[row, at : at + end - start].tolist()
            assert targets == [*documents[document][start + 1 : end].tolist(), IGNORED]
            at += end - start
            num_chunks += 1
        assert (document_BT[row, at:] == PADDING).all()
        assert (batch.targets_BT[row, at:] == IGNORED).all()
    assert batch.num_targets == sum(LENGTHS) - num_chunks

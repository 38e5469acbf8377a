"""Checkpoints of strangers: only files of their own folder, bounded, and refused in one line."""

import enum
import json
import os
import pickle
import re
import shutil
import zlib

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)

from labkit import run
from labkit.checkpoint import (
    Checkpointer,
    Damaged,
    DoesNotFit,
    SampleCursor,
    load_plain,
    manifest,
    read_gpt,
    read_tensors,
)
from labkit.checkpoint.dcp_metadata import read_metadata
from labkit.model import GPT, GPTConfig, parameter_shapes
from scripts.fuzz_manifests import manifests

CONFIG = GPTConfig(vocab=16, context=8, num_layers=1, hidden=16, num_heads=2)
NORM = "model.norm.weight"
FILE = "rank-0000.safetensors"


def job():
    model = GPT(CONFIG)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), SampleCursor(100, 4)


def saves(world, folder):
    model, optimizer, cursor = job()
    model(torch.arange(8)[None]).sum().backward()
    optimizer.step()
    Checkpointer(folder, model, optimizer, world, extra={"config": CONFIG, "data": cursor}).save(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    run(saves, 1, (folder,), timeout=600)
    return folder


def mutated(saved, folder, mutate):
    """A copy of the checkpoint with another manifest, whose checksum is right; its own folder."""
    shutil.copytree(saved, folder)
    (path,) = folder.glob("*/manifest.json")
    _, body = path.read_text().splitlines()
    plain = json.loads(body)
    text = mutate(plain)
    write(path, text if isinstance(text, str) else json.dumps(plain))
    return path.parent


def write(path, body):
    head = {"format": "labkit checkpoint, format 1", "crc32": zlib.crc32(body.encode())}
    path.write_text(f"{json.dumps(head)}\n{body}\n")


def put(*way):
    """Put the last of these at the place that the others lead to."""

    def mutate(plain):
        *path, last, value = way
        for key in path:
            plain = plain[key]
        plain[last] = value

    return mutate


def drop(*way):
    def mutate(plain):
        *path, last = way
        for key in path:
            plain = plain[key]
        del plain[last]

    return mutate


def file_named(name):
    """Rename a file of the checkpoint; its shards use the new name, too."""

    def mutate(plain):
        plain["files"] = {name: plain["files"][FILE]}
        for *_, shards in plain["tensors"].values():
            for shard in shards:
                shard[0] = name

    return mutate


def shape_of(shape):
    def mutate(plain):
        record = plain["tensors"][NORM]
        record[2] = record[3][0][1][0] = shape
        record[3][0][1][1] = [[0, n] for n in shape]
        record[3][0][1][3] = 10**18

    return mutate


SHARD = ("tensors", NORM, 3, 0)


@pytest.mark.parametrize(
    ("mutate", "words"),
    [
        (file_named("/etc/passwd"), "'/etc/passwd'"),
        (file_named("../../x"), r"'\.\./\.\./x'"),
        (file_named("rank-0001.safetensors"), "rank-0001"),
        (file_named("rank-00000.safetensors"), "rank-00000"),
        (put(*SHARD, 0, "/etc/passwd"), "'/etc/passwd'"),
        (put("files", "../x", 5), "world_size is 1"),
        (put("files", FILE, -1), "is -1"),
        (drop("values", "extra"), "values is .*extra"),
        (drop("step"), "step"),
        (put("colour", "red"), "an object of step"),
        (put("step", 2), "it is the manifest of step-00000002"),
        (put("step", "1"), "step is '1'"),
        (put("save_id", "../../xx"), "save_id"),
        (put("world_size", 10**9), "world_size is 1000000000"),
        (put("tensors", None), "tensors is None"),
        (put("tensors", NORM, 5), "is 5"),
        (put("tensors", "a\nb", 5), "name of a tensor"),
        (put("tensors", NORM, 0, "F99"), "dtype .*'F99'"),
        (put("tensors", NORM, 0, []), "dtype"),
        (put("tensors", NORM, 1, "half"), "kind .*'half'"),
        (put("tensors", NORM, 1, "int"), "I64"),
        (put("tensors", NORM, 2, "ab"), "shape .*'ab'"),
        (shape_of([10**18]), "4000000000000000000 bytes"),
        (shape_of([2**62, 2**62]), "shape"),
        (shape_of([0, 2**40, 2**40]), "shape"),
        (put(*SHARD, 2, 10**9), "1000000000"),
        (put(*SHARD, 2, -8), "-8"),
        (put(*SHARD, 2, True), "True"),
        (put(*SHARD, 3, 2**40), "CRC"),
        (put(*SHARD, 1, 3, 10**18), "start and stop"),
        (put(*SHARD, 1, 1, [[0, 99]]), "box"),
        (lambda plain: plain["tensors"][NORM][3].append(plain["tensors"][NORM][3][0]), "32"),
        (put("values", "settings", 5), "settings"),
        (put("values", "settings", [{"lr": {}}]), "lr"),
        (put("values", "optimizer", 5), "optimizer"),
        (put("values", []), "values"),
        (lambda plain: "[" * 100_000, "nested"),
        (lambda plain: '{"step": ' + "9" * 5000 + "}", "JSON"),
        (lambda plain: "{", "JSON"),
        (lambda plain: "null", "None"),
        (lambda plain: "", "JSON"),
    ],
)
def test_a_manifest_that_no_save_has_written_is_damaged(saved, tmp_path, mutate, words):
    path = mutated(saved, tmp_path / "folder", mutate)
    for read in (read_gpt, read_tensors):
        with pytest.raises(Damaged) as error:
            read(tmp_path / "folder")
        text = str(error.value)
        assert text.startswith(str(path)) and re.search(words, text) and "\n" not in text
        assert len(text) < 1000


def test_two_shards_of_the_same_bytes_and_elements_that_are_nowhere_are_damaged(saved, tmp_path):
    def of_another(plain):
        other = next(name for name in plain["tensors"] if name.endswith("attention_norm.weight"))
        plain["tensors"][NORM][3][0][2:] = plain["tensors"][other][3][0][2:]

    def twice(plain):
        file, extent, offset, checksum = plain["tensors"][NORM][3][0]
        halves = [[file, [*extent[:2], 0, 8], offset + 32 * i, 0] for i in range(2)]
        plain["tensors"][NORM][3] = halves

    for number, (mutate, words) in enumerate(
        [(of_another, "both have byte"), (twice, "element 0 of .* in two|element 8 .* no shard")]
    ):
        mutated(saved, tmp_path / f"{number}", mutate)
        with pytest.raises(Damaged, match=words):
            read_tensors(tmp_path / f"{number}")


def test_a_manifest_is_bounded_before_it_is_parsed(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "MOST_BYTES", 1000)
    with pytest.raises(Damaged, match="more than the 1000"):
        read_gpt(saved)


@pytest.mark.parametrize("name", [FILE, "manifest.json"])
def test_a_link_out_of_the_folder_is_not_followed(saved, tmp_path, name):
    path = mutated(saved, tmp_path / "folder", lambda plain: None) / name
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged, match=f"{name} is a symbolic link.*cp -L"):
        read_gpt(tmp_path / "folder")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Damaged, match=f"{name} is no file"):
        read_gpt(tmp_path / "folder")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_layers": 10**9}, "num_layers=1000000000"),
        ({"hidden": 10**12, "num_heads": 1}, "embedding.token.weight"),
        ({"context": 10**12}, "context=1000000000000"),
        ({"rotary": True, "context": 10**12}, "context"),
        ({"rotary": True}, "embedding.position.weight"),
        ({"num_layers": 2}, "blocks.1"),
        ({"ffn": 10**12}, "mlp"),
        ({"colour": 1}, "colour"),
        ({"hidden": "x"}, "hidden='x'"),
    ],
)
def test_a_gpt_of_other_sizes_is_not_made(saved, tmp_path, sizes, words):
    mutated(saved, tmp_path / "folder", lambda p: p["values"]["extra"]["config"].update(sizes))
    with pytest.raises(DoesNotFit, match=words):
        read_gpt(tmp_path / "folder")


@pytest.mark.parametrize("sizes", [{}, {"rotary": True, "ffn": 24}, {"num_kv_heads": 1}])
def test_the_shapes_of_a_gpt_are_those_that_it_has(sizes):
    config = GPTConfig(vocab=16, context=8, num_layers=2, hidden=16, num_heads=4, **sizes)
    found = {name: tuple(each.shape) for name, each in GPT(config).named_parameters()}
    assert parameter_shapes(config) == found


def refuses(world, folder):
    """The texts of the errors by case; nothing has changed."""
    texts = {}
    for path in sorted(folder.iterdir()):
        model, optimizer, cursor = job()
        before = [each.clone() for each in model.parameters()]
        extra = {"config": CONFIG, "data": cursor}
        with pytest.raises(DoesNotFit) as error:
            Checkpointer(path, model, optimizer, world, extra=extra).load()
        assert all(map(torch.equal, before, model.parameters())) and not optimizer.state
        texts[path.name] = str(error.value)
    return texts


def test_settings_states_and_positions_of_another_kind_are_refused_before_a_change(saved, tmp_path):
    state = "optimizer.norm.weight.exp_avg"

    def rename(plain):
        plain["tensors"]["optimizer.norm.weight.exp_avx"] = plain["tensors"].pop(state)

    def random_state(plain):
        for name in [name for name in plain["tensors"] if name.startswith("rng.")]:
            del plain["tensors"][name]

    cases = {
        "a setting": (put("values", "settings", 0, "lr", "fast"), "lr='fast'"),
        "a tuple": (put("values", "settings", 0, "betas", 5), "betas=5"),
        "a state": (rename, "no state exp_avg of norm.weight"),
        "a dtype": (put("tensors", state, 0, "I32"), "int32"),
        "a position": (put("values", "extra", "data", "taken", -5), "'data'.*taken=-5"),
        "a missing position": (drop("values", "extra", "data", "taken"), "'data'.*taken"),
        "random states": (random_state, "random states"),
    }
    for name, (mutate, _) in cases.items():
        mutated(saved, tmp_path / name, mutate)
    (texts,) = run(refuses, 1, (tmp_path,), timeout=600).values
    for name, (_, words) in cases.items():
        assert re.search(words, texts[name]), texts[name]


def loads_headers(world, folder):
    model = torch.nn.Linear(3, 2)
    for path in sorted(folder.glob("damaged*")):
        with pytest.raises(Damaged, match=f"{path.name}.*weight") as error:
            load_plain(path, model, world)
        assert "\n" not in str(error.value)
    for path in sorted(folder.glob("short*")):
        with pytest.raises(OSError, match=path.name):
            load_plain(path, model, world)


def test_a_plain_file_whose_header_lies_is_named(tmp_path):
    path = tmp_path / "whole"
    save_file(torch.nn.Linear(3, 2).state_dict(), path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    row = {"dtype": "F32", "shape": [2, 3], "data_offsets": header["weight"]["data_offsets"]}
    for number, changes in enumerate(
        [
            {"shape": [10**18]},
            {"shape": [-2, -3]},
            {"shape": "23"},
            {"dtype": []},
            {"data_offsets": header["bias"]["data_offsets"]},
            {"data_offsets": [-8, 16]},
            {"data_offsets": ["0", "24"]},
            {"data_offsets": None},
        ]
    ):
        text = json.dumps({**header, "weight": {**row, **changes}}).encode()
        (tmp_path / f"damaged-{number}").write_bytes(
            len(text).to_bytes(8, "little") + text + data[8 + length :]
        )
    (tmp_path / "damaged-row").write_bytes((12).to_bytes(8, "little") + b'{"weight":5}')
    (tmp_path / "short-deep").write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    (tmp_path / "short-long").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    run(loads_headers, 1, (tmp_path,), timeout=600)


def test_mutated_checkpoints_end_in_a_load_or_in_one_line():
    ended, wrong = manifests(count=12, seed=1)
    assert not wrong
    assert sum(ended.values()) == 24


def test_what_dcps_metadata_nests_is_neither_hashed_nor_shown(tmp_path):
    # A tuple of one tuple twice, and so on: with every 6 bytes it takes twice as long.
    head, nested = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}", b")\x85"
    as_key = head + b"}" + nested + b"Nssb."
    with pytest.raises(Damaged, match="no key"):
        read_metadata(tmp_path, as_key)
    rows = b"X\x13\x00\x00\x00state_dict_metadata" + b"ctorch\nSize\n" + nested + b"R"
    with pytest.raises(Damaged, match="Size.* is no dict") as error:
        read_metadata(tmp_path, head + rows + b"sb.")
    assert "((" not in str(error.value)


def test_tensors_of_dcp_that_share_a_list_of_chunks_are_refused(tmp_path):
    size = torch.Size([2])
    chunks = [ChunkStorageMetadata(torch.Size([0]), size)] * 2
    rows = [TensorStorageMetadata(TensorProperties(torch.float32), size, chunks) for _ in "ab"]
    read_metadata(tmp_path, pickle.dumps(dcp.Metadata({"a": rows[0]}, storage_data={})))
    data = pickle.dumps(dcp.Metadata(dict(zip("ab", rows)), storage_data={}))
    with pytest.raises(Damaged, match="those of another tensor"):
        read_metadata(tmp_path, data)


def test_metadata_of_dcp_that_an_older_python_3_11_wrote_is_read(tmp_path, monkeypatch):
    """Up to 3.11.3 a member of an enum is written as getattr(its class, its name)."""
    reduced = lambda member, _: (getattr, (type(member), member.name))  # noqa: E731
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", reduced)
    size = torch.Size([2])
    row = TensorStorageMetadata(TensorProperties(torch.float32), size, [])
    data = pickle.dumps(dcp.Metadata({"a": row}, storage_data={}))
    assert b"getattr" in data
    assert read_metadata(tmp_path, data).state_dict_metadata["a"].size == size

"""From training to serving: examples/train_and_serve.py, and `labkit serve` in a terminal."""

import os
import signal
import subprocess
import sys

import httpx
import openai
import pytest
import torch

from labkit import RankError, cli
from labkit.checkpoint import Checkpointer, DoesNotFit, read_gpt
from labkit.launch import run
from labkit.model import GPTConfig
from labkit.serving import Request
from labkit.serving.server import engine_of
from tests.an_example import load_example
from tests.processes import are_gone_within

example = load_example("train_and_serve")
SERVE = """
import signal, sys
from labkit import cli
sys.argv.insert(1, "serve")
cli.main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of the example, made by its own command line."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_and_serve.py", "--steps", "3", "--out", str(folder)])
        patch.setattr(example, "PROMPTS", ("def ",))
        example.main()
    return folder


def test_what_was_trained_on_two_ranks_is_served_by_two_until_ctrl_c(folder):
    command = [sys.executable, "-c", SERVE, str(folder), "--port", "0", "--tp", "2"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        line = server.stdout.readline()
        assert line.startswith("tiny: 75")  # thousand parameters
        client = openai.OpenAI(base_url=line.split()[-1], api_key="none")
        answer = client.completions.create(
            model="tiny", prompt="def ", max_tokens=20, temperature=0
        )
        request = Request(list(b"def "), 20)
        [tokens] = engine_of(read_gpt(folder)).generate([request])
        assert answer.choices[0].text == bytes(tokens).decode(errors="replace")
        listed = subprocess.run(
            ["ps", "-o", "pid=", "-s", str(server.pid)], capture_output=True, text=True
        )
        pids = [int(pid) for pid in listed.stdout.split()]
        assert len(pids) > 2
        stream = client.completions.create(  # the most likely byte is never the last one
            model="tiny", prompt="def ", max_tokens=4000, temperature=0, stream=True
        )
        next(iter(stream))
        os.killpg(server.pid, signal.SIGINT)  # as a terminal does, to all that it has started
        with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
            list(stream)
        assert server.wait(120) == 0
        assert server.stdout.read().endswith("closed\n")
        assert are_gone_within(pids, 60)
    finally:
        server.kill()


def test_what_cannot_be_served_is_one_clear_message(folder, tmp_path, monkeypatch, capsys):
    for arguments, fact in (([str(tmp_path)], "no complete"), ([str(folder), "--tp", "3"], "1, 2")):
        monkeypatch.setattr(sys, "argv", ["labkit", "serve", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        error = " ".join(capsys.readouterr().err.replace("│", "").split())  # without its box
        assert ended.value.code == 2 and fact in error and "Traceback" not in error


def saves_no_gpt(world, folder):
    model = torch.nn.Linear(2, 2)
    Checkpointer(folder / "none", model, None, world).save(1)
    Checkpointer(folder / "sizes", model, None, world, extra={"config": GPTConfig()}).save(1)


def test_a_checkpoint_of_another_model_or_without_sizes_is_no_gpt(tmp_path):
    run(saves_no_gpt, 1, (tmp_path,))
    for folder, reason in [("none", "extra="), ("sizes", "bias|weight")]:
        with pytest.raises(DoesNotFit, match=reason):
            read_gpt(tmp_path / folder)


def loads_with_other_sizes(world, folder):
    config = GPTConfig(num_heads=2)
    Checkpointer(folder, torch.nn.Linear(2, 2), None, world, extra={"config": config}).load()


def test_a_checkpoint_of_other_sizes_does_not_load(tmp_path):
    run(saves_no_gpt, 1, (tmp_path,))
    with pytest.raises(RankError, match="num_heads=4"):
        run(loads_with_other_sizes, 1, (tmp_path / "sizes",))

"""The take-home: answers that run, their score, and a bound that none goes below."""

import random
import sys

import pytest

from labkit import calc, cli, pipeline
from labkit.interview.take_home import (
    BASELINES,
    FAR_FACTOR,
    FAR_HOST,
    JOB,
    SLOW_HOST,
    UnusableAnswer,
    best_s,
    bound_s,
    score,
)

LAYOUT = "dp=2 pp=4 tp=8 zero=1 recompute=selective"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def test_the_bound_counts_products_and_no_lookup():
    """Seven hosts at full speed and one slower: operations over what all reach at best."""
    gpu, config = calc.GPUS["h100"], JOB.config
    multiplied = float(calc.num_parameters(JOB.model)) - config.vocab * config.hidden
    reached = gpu.flops_per_s * gpu.matmul_share * 8 * (7 + 1 / 1.2)
    assert bound_s() == pytest.approx(6 * multiplied * 64 * 8192 / reached)


def test_five_baselines_run_and_none_is_below_the_bound():
    score({"layout": LAYOUT}, keep=False)
    assert best_s() is None
    seconds = {name: score(answer).seconds for name, answer in BASELINES.items()}
    assert len(seconds) == 5 and min(seconds.values()) > bound_s() > 0
    assert best_s() == min(seconds.values())


def test_no_random_answer_is_below_the_bound_either():
    rng = random.Random(0)
    for _ in range(20):
        tp, pp = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4])
        layout = f"dp={64 // tp // pp} pp={pp} tp={tp} zero={rng.choice([1, 3])} recompute=full"
        hosts = rng.sample(range(8), 8)
        try:
            assert score({"layout": layout, "hosts": hosts}, keep=False).seconds > bound_s()
        except UnusableAnswer:
            continue


def test_a_stage_with_fewer_layers_on_the_slow_host_is_faster():
    def seconds(stages):
        # Two hosts on each stage; nodes 0 and 1 of the layout are stage 0's.
        hosts = [SLOW_HOST, 1, 2, 3, 4, 0, 6, 7]
        return score({"layout": f"{LAYOUT} stages={stages}", "hosts": hosts}).seconds

    assert seconds("17+21+21+21") < seconds("20+20+20+20") < seconds("23+19+19+19")


def test_a_far_host_costs_only_where_something_passes_to_another_host():
    far_first = [FAR_HOST, 0, 1, 3, 4, 5, 6, 7]
    one_host_each = score({"layout": "dp=1 pp=8 tp=8 zero=1 recompute=full", "hosts": far_first})
    assert one_host_each.exchange_s == 0
    text = "dp=8 tp=8 zero=1 recompute=full"
    parts = calc.plan.pieces(JOB, calc.Layout.parse(text))
    near_s = (parts.reduce_s[0] + parts.gather_s[0]) * (1 - parts.overlap)
    assert near_s > 0
    assert score({"layout": text}).exchange_s == pytest.approx(FAR_FACTOR * near_s)


def test_a_far_host_at_an_end_of_the_pipeline_has_one_slow_link_and_in_the_middle_two():
    def seconds(hosts):
        layout = "dp=1 pp=8 tp=8 zero=1 recompute=full"
        return score({"layout": layout, "hosts": hosts}, keep=False).seconds

    assert seconds([FAR_HOST, 0, 1, 3, 4, 5, 6, 7]) < seconds([0, 1, 3, FAR_HOST, 4, 5, 6, 7])


def test_gpipe_is_as_fast_as_1f1b_and_holds_more():
    layout = "dp=2 pp=4 tp=8 zero=1 recompute=full"
    gpipe, one_f_one_b = (score({"layout": layout, "schedule": s}) for s in ("gpipe", "1f1b"))
    assert gpipe.memory_bytes > one_f_one_b.memory_bytes
    assert gpipe.seconds == pytest.approx(one_f_one_b.seconds, rel=0.02)


def test_rows_of_ones_own_are_the_schedule():
    rows = pipeline.text(pipeline.plan(pipeline.one_f_one_b, 4, 32))
    assert score({"layout": LAYOUT, "schedule": rows}) == score({"layout": LAYOUT})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "there is no layout"),
        ({"layout": "dp=2"}, "2 GPUs, and the cluster 64"),
        ({"layout": "tp=16 dp=4"}, "within a host of 8"),
        ({"layout": "dp=64 zero=0"}, "needs .* GB and has"),
        ({"layout": "dp=8 tp=8 zero=1"}, "needs 88.9 GB and has 80.7 GB"),
        ({"layout": LAYOUT, "hosts": [0, 0, 1, 2, 3, 4, 5, 6]}, "each of 0 to 7 once"),
        ({"layout": LAYOUT, "schedule": "best"}, "give one of gpipe, 1f1b"),
        ({"layout": LAYOUT, "schedule": "F0 B0"}, "1 stages and 1 microbatches"),
        ({"layout": LAYOUT, "schedule": "F0 F0"}, "F0"),
        ({"layout": LAYOUT, "schedule": ["F0 B0"]}, "give one of gpipe, 1f1b"),
        ({"layout": LAYOUT, "hosts": [[0], 1, 2, 3, 4, 5, 6, 7]}, "each of 0 to 7 once"),
        ({"layout": [LAYOUT]}, "there is no layout"),
        ({"layout": LAYOUT, "speed": 1}, "unknown speed"),
    ],
)
def test_answers_that_cannot_run_say_why(answer, said):
    with pytest.raises(UnusableAnswer, match=said):
        score(answer)


def test_a_terminal_shows_the_task_and_scores_a_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(f'layout = "{LAYOUT}"\nschedule = "zb-h1"\n')
    for words, status, said in (
        ((), 0, "Answers to beat"),
        ((str(file),), 0, "It beats FSDP on all GPUs"),
        ((str(tmp_path / "none.toml"),), 2, "cannot be read"),
    ):
        monkeypatch.setattr(sys, "argv", ["labkit", "take-home", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capsys.readouterr()
        assert end.value.code == status and said in " ".join((out.out + out.err).split())

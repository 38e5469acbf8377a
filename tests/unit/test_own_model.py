"""A config.json that a reader brings to a calculator: its model is on the menu, and selected."""

import json
from datetime import UTC, datetime

import ipywidgets as widgets
import pytest

from labkit import calc
from labkit.notebook import cache_calculator, layout_planner, memory_calculator
from labkit.notebook.own_model import config_upload

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "max_position_embeddings": 2048,
    "vocab_size": 1000,
}
JAMBA = LLAMA | {"model_type": "jamba", "num_experts": 4, "num_experts_per_tok": 2}
CONFIG = calc.model_from_config(LLAMA)


def parts_of(widget, kind):
    inner = [found for each in getattr(widget, "children", ()) for found in parts_of(each, kind)]
    return [widget] * isinstance(widget, kind) + inner


def bring(shown, content, name="config.json"):
    """Upload a file's content to a calculator; what is said about it."""
    (upload,) = parts_of(shown, widgets.FileUpload)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    file = {"name": name, "content": memoryview(text), "type": "", "size": len(text)}
    upload.value = (file | {"last_modified": datetime.now(UTC)},)
    assert upload.value == (), "the same file may come again"
    places = parts_of(shown, widgets.VBox)
    (said,) = (each.children[1] for each in places if each.children[0] is upload)
    return said.value


@pytest.mark.parametrize("make", [memory_calculator, layout_planner, cache_calculator])
def test_each_calculator_takes_a_config(make):
    shown = make("llama3-8b")
    assert "parameters" in bring(shown._widget, LLAMA)
    assert shown._knobs["model"].value == CONFIG
    if make is layout_planner:
        shown.plan_again()
        assert shown.plan.job.model == CONFIG
    elif make is memory_calculator:
        assert shown.setup.model == CONFIG
    else:
        assert "4 layers" in shown._said.value


@pytest.fixture
def menu():
    return widgets.Dropdown(options=[("llama3-8b", "llama3-8b")])


def test_a_config_is_on_the_menu_once(menu):
    upload = config_upload(menu, lambda config: None)
    bring(upload, LLAMA)
    bring(upload, LLAMA, "other.json")
    count = calc.count_text(float(calc.num_parameters(CONFIG)))
    assert list(menu.options) == [("llama3-8b", "llama3-8b"), (f"your llama ({count})", CONFIG)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "config.json is no JSON"),
        (b"\xff\xfe\x00", "config.json is no JSON"),
        (b"[1]", "config.json has no JSON object"),
        ({"model_type": "<b>"}, "config.json: model_type=&#x27;&lt;b&gt;&#x27;: no formula"),
        (LLAMA | {"hidden_size": "wide"}, "config.json: "),
        (JAMBA, "config.json: no formula for what layers without attention"),
    ],
)
def test_a_bad_file_says_what_is_wrong_and_nothing_is_lost(menu, content, said):
    upload = config_upload(menu, lambda config: calc.activation_bytes(config, 1))
    bring(upload, LLAMA)
    before = list(menu.options)
    assert said in bring(upload, content)
    assert list(menu.options) == before and menu.value == CONFIG


def test_what_is_not_counted_is_said(menu):
    with_images = {"model_type": "mistral3", "text_config": LLAMA}
    assert "without what sees images" in bring(
        config_upload(menu, lambda config: None), with_images
    )

"""The cache calculator: what it shows is labkit.calc's, and each knob moves it."""

import pytest

from labkit import calc
from labkit.notebook import cache_calculator
from labkit.notebook.cache import CacheSetup, cache_html

HYBRID = calc.ModelConfig(
    layers=6, hidden=512, heads=8, vocab=1000, context=1024, window=128,
    pattern=(calc.models.Layer("window"),) * 2 + (calc.models.Layer(),),
)  # fmt: skip


def test_there_is_a_row_for_each_kind_of_layer_and_their_sum():
    setup = CacheSetup(HYBRID, tokens=1024, requests=4)
    one, four = (calc.cache_bytes(HYBRID, 1024, each, page_size=16) for each in (1, 4))
    heading, *parts, together = setup.rows()
    assert heading[:3] == ["", "a request", "4 requests"]
    assert [row[0] for row in parts] == ["window layers", "full layers"]
    assert parts[0][3] == "4 layers * 128 tokens * 1,024 * 2 B"
    assert [row[1:3] for row in parts] == [
        [str(one[name]), str(four[name])] for name in ("window layers", "full layers")
    ]
    assert together[:3] == ["together", str(one), str(four)]


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (CacheSetup(), "16 requests fit: h100 has room for 56."),
        (CacheSetup(requests=64), "64 requests do not fit: h100 has room for 56."),
        (CacheSetup("llama3-70b"), "The weights do not fit on h100: 141 GB a GPU"),
        (CacheSetup("llama3-70b", tp=2, gpu="h200"), "fit: 2 x h200 has room for"),
    ],
)
def test_it_says_how_many_requests_fit(setup, said):
    assert said in setup.says
    most = calc.requests_that_fit(setup.model, setup.gpu, setup.tokens, page_size=16, tp=setup.tp)
    assert f"room for {int(most):,}." in setup.says or int(most) == 0


def test_the_bar_has_weights_and_caches_and_ends_at_the_usable_memory():
    html = cache_html(CacheSetup())
    room, weights = (
        0.9 * calc.GPUS["h100"].memory_bytes,
        2 * float(calc.num_parameters("llama3-8b")),
    )
    assert f"width: {100 * weights / room:.2f}%" in html
    assert "left: 100.00%" in html
    held = weights + 64 * float(calc.cache_bytes("llama3-8b", 8192))
    assert f"left: {100 * room / held:.2f}%" in cache_html(CacheSetup(requests=64))


def test_every_knob_moves_the_answer_and_not_the_stored_form():
    shown = cache_calculator()
    stored = repr(shown)
    moved = {"model": "deepseek-v3", "gpu": "h200", "weight_bits": 8, "cache_bits": 4}
    moved |= {"tokens": 32768, "requests": 64, "tp": 8}
    for name, value in moved.items():
        before = shown._said.value
        shown._knobs[name].value = value
        assert shown._said.value != before
    assert shown.setup == CacheSetup(**moved)
    assert shown._said.value == cache_html(shown.setup)
    assert repr(shown) == stored
    data = shown._repr_mimebundle_()
    assert data["text/plain"] == stored and cache_html(CacheSetup()) in data["text/html"]


def test_all_models_and_gpus_can_be_chosen():
    shown = cache_calculator(tp=8)
    for name in ("model", "gpu"):
        for _, value in shown._knobs[name].options:
            shown._knobs[name].value = value
            assert shown.setup.rows()


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"model": "llama9"}, ValueError, "none of"),
        ({"gpu": "abacus"}, ValueError, "none of"),
        ({"tokens": 0}, ValueError, "tokens=0"),
        ({"tp": 0}, ValueError, "tp=0"),
        ({"cache_bits": 128}, ValueError, "not bits"),
        ({"bits": 4}, TypeError, "no knob is called bits"),
    ],
)
def test_what_cannot_be_is_refused(wrong, error, said):
    with pytest.raises(error, match=said):
        cache_calculator(**wrong)

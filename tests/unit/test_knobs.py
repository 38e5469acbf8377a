"""Sliders for any function: they say what the function says, and refuse what does not fit."""

import pytest

from labkit import viz
from labkit.notebook import Knob, knobs


def product(left, right):
    return [("product", f"{left * right}"), ("of", f"{left} and {right}")]


def test_knobs_say_what_the_function_says_at_their_start():
    shown = knobs(product, left=Knob([1, 2, 3], start=2), right=Knob([5, 7], start=7))
    assert repr(shown) == "product: 14\nof: 2 and 7"
    html = shown._repr_mimebundle_()["text/html"]
    assert "product" in html and ">14<" in html


def test_a_moved_slider_changes_the_result_and_not_the_stored_form():
    shown = knobs(product, left=Knob([1, 2, 3], start=2), right=Knob([5, 7], start=7))
    shown._sliders["left"].value = 3
    assert shown.values == {"left": 3, "right": 7}
    assert ">21<" in shown._result.value
    assert repr(shown).startswith("product: 14")


def test_values_are_shown_in_the_words_given():
    shown = knobs(
        product,
        left=Knob([1000], start=1000, label="many"),
        right=Knob([1], start=1, text=lambda value: f"{value} only"),
    )
    assert shown._sliders["left"].description == "many"
    assert shown._sliders["left"].options[0][0] == "1,000"
    assert shown._sliders["right"].options[0][0] == "1 only"


def test_bars_begin_at_the_left_and_are_as_long_as_their_share():
    shown = knobs(lambda x: [("a", "10%", 0.1 * x), ("b", "40%", 0.4), ("c", "")], x=Knob([1], 1))
    assert repr(shown) == "a: 10%\nb: 40%\nc: "
    html = shown._result.value
    assert [html.count(f"width: {em}em; height") for em in ("2.40", "9.60")] == [1, 1]
    assert html.count("height: 0.9em") == 2


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="start=4 .* 1 to 3"):
        Knob([1, 2, 3], start=4)
    with pytest.raises(ValueError, match="needs values"):
        Knob([], start=0)
    with pytest.raises(TypeError, match=r"left .*product\(left, right\)"):
        knobs(product, left=Knob([1], start=1))
    with pytest.raises(TypeError, match="left=3"):
        knobs(product, left=3, right=Knob([1], start=1))


def test_a_picture_stands_below_the_rows_and_is_drawn_again():
    def product_drawn(left):
        yield viz.curves({"": {"line": {1: left}}}, xlabel="x", ylabel="y", title=f"times {left}")
        yield ("left", f"{left}")

    shown = knobs(product_drawn, left=Knob([1, 2], start=1))
    assert repr(shown) == "<times 1: line>\nleft: 1"
    before = shown._result.value
    assert before.index("left") < before.index('alt="times 1: line"')
    shown._sliders["left"].value = 2
    assert 'alt="times 2: line"' in shown._result.value

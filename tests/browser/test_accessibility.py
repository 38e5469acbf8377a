"""The checks of accessibility.py see the faults for which they are there, on pages made up here."""

import pytest

from . import accessibility

OUTPUT = '<div data-cell="made-up"><div class="jp-Cell-outputArea">{}</div></div>'


@pytest.fixture(scope="module")
def tab_of_its_own(chromium):
    page = chromium.new_page()
    yield page
    page.close()


@pytest.fixture
def shown(tab_of_its_own):
    """Show HTML as a cell's output; playwright's locator of it."""

    def show(html):
        tab_of_its_own.set_content(OUTPUT.format(html))
        return tab_of_its_own.locator(".jp-Cell-outputArea")

    return show


@pytest.mark.parametrize(
    ("html", "is_named"),
    [
        ("<button>Commit</button>", True),
        ('<button title="Commit"></button>', True),
        ('<label>Answer <input placeholder="a number"></label>', True),
        ('<div role="slider" tabindex="0" aria-label="ranks"></div>', True),
        ("<button></button>", False),
        ('<input placeholder="a number">', False),
        ('<label>ranks</label><div role="slider" tabindex="0"></div>', False),
    ],
)
def test_a_name_is_what_a_screen_reader_says_and_no_placeholder(shown, html, is_named):
    assert (accessibility.nameless(shown(html).page, "made-up") == []) is is_named


def test_what_tab_passes_by_is_seen(shown):
    output = shown("<button>one</button><button tabindex=-1>two</button><input>")
    (fault,) = accessibility.unreached(output.page, output)
    assert "two" in fault


KEEPS = '<button id="{}" onkeydown="event.preventDefault(); {}.focus()">a trap</button>'
TRAPS = {
    "one that takes the key": KEEPS.format("one", "one") + "<input>",
    "two that pass the focus on": KEEPS.format("one", "two") + KEEPS.format("two", "one"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_what_keeps_the_focus_is_seen(shown, trap):
    output = shown(TRAPS[trap])
    (fault,) = accessibility.unreached(output.page, output)
    assert "does not get out of" in fault and "a trap" in fault


def test_contrast_is_that_of_the_ink_over_all_that_lies_behind_it(shown):
    output = shown(
        '<p style="color: #767676">4.54 on white</p><p style="color: #7b7b7b">4.2</p>'
        '<div style="background: #000"><p style="color: #fff8">a grey on black</p>'
        '<div style="background: #fffc"><p style="color: #fff">white on a veil</p></div></div>'
    )
    assert [each.split(": ")[1] for each in accessibility.faint(output)] == [
        "4.2",
        "white on a veil",
    ]


def test_what_is_cut_off_or_scrolled_sideways_is_seen(shown):
    wide = '<div style="width: 90px">wide</div>'
    output = shown(
        f'<div style="overflow: hidden; width: 50px">{wide}</div>'
        f'<div style="overflow: auto; width: 50px">{wide}</div>'
        f'<div style="overflow: auto; width: 50px" role="region" tabindex="0">{wide}</div>'
        f'<div style="overflow: auto; width: 91px">{wide}</div>'
    )
    assert len(accessibility.too_wide(output)) == 2

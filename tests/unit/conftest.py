"""Rules that hold for every picture that a test here draws."""

import pytest
from matplotlib.text import Text

from labkit.viz import style
from labkit.viz.picture import Picture


@pytest.fixture(autouse=True)
def type_that_can_be_read(request, monkeypatch):
    """No text in a picture is smaller than style.SMALLEST_POINTS, whatever is drawn."""
    if not request.path.name.startswith("test_viz"):
        yield
        return
    pictures, usual = [], Picture.__init__

    def recorded(picture, *words, **more):
        usual(picture, *words, **more)
        pictures.append(picture)

    monkeypatch.setattr(Picture, "__init__", recorded)
    yield
    texts = [text for picture in pictures for text in picture.findobj(Text) if text.get_text()]
    small = {text.get_text(): text.get_fontsize() for text in texts}
    assert {k: v for k, v in small.items() if v < style.SMALLEST_POINTS} == {}

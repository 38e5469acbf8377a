"""Widgets as a reader finds them: by their words, and only where they show."""

import ipywidgets as widgets


def shown_in(widget):
    """The widget and all in it, in the order of the page, without what is hidden."""
    if widget.layout.display == "none":
        return
    yield widget
    for child in getattr(widget, "children", ()):
        yield from shown_in(child)


def buttons(widget):
    """The labels of the buttons that show."""
    return [each.description for each in shown_in(widget) if isinstance(each, widgets.Button)]


def press(widget, label):
    """Press the one button that shows and whose label begins so."""
    (found,) = [
        each
        for each in shown_in(widget)
        if isinstance(each, widgets.Button) and each.description.startswith(label)
    ]
    assert not found.disabled, f"{found.description!r} cannot be pressed"
    found.click()


def entry(widget):
    """The one field to write into."""
    (found,) = [
        each for each in shown_in(widget) if isinstance(each, (widgets.Text, widgets.Textarea))
    ]
    return found


def points(widget):
    """The boxes to tick."""
    return [each for each in shown_in(widget) if isinstance(each, widgets.Checkbox)]


def words(widget):
    """All the words that show."""
    return " ".join(
        each.value for each in shown_in(widget) if isinstance(each, widgets.HTML) and each.value
    )

"""Names for sliders, and room for their values: what a screen reader says when one has the focus.

A slider of ipywidgets has its label beside it, but nothing ties the two together: a screen reader
says "slider, 3", and neither what moves nor that it stands at "8 ranks". No trait can change that.
A few lines in the page do: label and value become the name of the handle.
"""

from typing import Any

import ipywidgets as widgets

# Once per page, for all sliders that it has and will have.
_SCRIPT = """
if (!window.labkitNamesSliders) {
  let count = 0
  const nameAll = () => {
    const unnamed = '.widget-slider [role=slider]:not([aria-labelledby])'
    for (const handle of document.querySelectorAll(unnamed)) {
      const row = handle.closest('.widget-slider')
      const parts = row.querySelectorAll('.widget-label, .widget-readout')
      parts.forEach(part => { part.id ||= `labkit-slider-${count++}` })
      for (const part of parts) {  // else "interleaved" loses its last letter
        part.style.maxWidth = 'none'
        part.style.flexShrink = 0
      }
      handle.setAttribute('aria-labelledby', [...parts].map(part => part.id).join(' '))
    }
  }
  window.labkitNamesSliders = new MutationObserver(nameAll)
  window.labkitNamesSliders.observe(document.body, {childList: true, subtree: true})
  nameAll()
}
"""


def with_slider_names(box: Any) -> Any:
    """The same box, whose sliders have names; call it once, with all of a calculator."""
    for slider in _sliders_in(box):
        slider.tooltip = slider.description  # without one, pointing at the label shows "null"
    script = {
        "output_type": "display_data",
        "data": {"application/javascript": _SCRIPT},
        "metadata": {},
    }
    box.children += (widgets.Output(outputs=(script,), layout={"display": "none"}),)
    return box


def _sliders_in(widget: Any) -> list[Any]:
    if isinstance(widget, widgets.SelectionSlider | widgets.IntSlider):
        return [widget]
    return [found for child in getattr(widget, "children", ()) for found in _sliders_in(child)]

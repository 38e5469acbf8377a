"""anywidget's class by the same contract, which widgets.mjs draws; no hot reload, no commands."""

from typing import Any

import ipywidgets
import traitlets


class AnyWidget(ipywidgets.DOMWidget):  # type: ignore[misc]
    """A widget whose `_esm` is the text of an ES module with `render({model, el})`."""

    _model_name = traitlets.Unicode("AnyModel").tag(sync=True)
    _esm: str

    def __init__(self, **values: Any) -> None:
        self.add_traits(_esm=traitlets.Unicode(self._esm).tag(sync=True))
        super().__init__(**values)

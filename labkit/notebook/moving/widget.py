"""A widget that plays a picture in steps, and what a page stores of it.

The browser gets a picture's data and its module, which draws without asking the kernel: the widget
also works on a saved page whose kernel has ended. A picture's own module imports the shared
player.mjs; for anywidget, which takes one text, `module_text` puts the two together.
"""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from labkit.notebook.shown import FAINT
from labkit.viz.picture import Picture

HINT = "Run this cell, and the picture moves: Space plays and pauses, the arrow keys step."
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_IMPORT = re.compile(r'^import \{.*?\} from "\./player\.mjs";\n', re.MULTILINE | re.DOTALL)


@cache
def module_text(name: str) -> str:
    """Return the player and the picture of this name as one ES module."""
    folder = files("labkit.notebook.moving")
    player, picture = ((folder / f"{each}.mjs").read_text("utf-8") for each in ("player", name))
    return player + _IMPORT.sub("", picture)


class Moving(anywidget.AnyWidget):
    """A picture in steps with a player, and below it a picture of the whole run.

    The second is for pages that only show what was stored, and for readers without JavaScript.
    There a line in the player's place says to run the cell. The stored HTML has the data too, so
    that the website plays the picture without a kernel:

        <div class="lab-moving" data-picture="ring">
        <script type="application/json">the data</script>the line</div>
    """

    data = traitlets.Dict().tag(sync=True)

    def __init__(self, picture: str, data: dict[str, Any], still: Picture) -> None:
        """picture: the name of a module beside this one. data: for it, with `title` and `steps`."""
        self._esm = module_text(picture)  # anywidget makes a field of it
        self.picture = picture
        self.still = still
        super().__init__(data=data)

    def __repr__(self) -> str:
        return repr(self.still)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        # A script ends at the first "</", also inside of a string.
        data = json.dumps(self.data, separators=(",", ":")).replace("</", "<\\/")
        html = (
            f'<div class="lab-moving" data-picture="{self.picture}">'
            f'<script type="application/json">{data}</script>'
            f'<span style="color: {FAINT}">{HINT}</span></div>'
        )
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        display({_WIDGET_VIEW: view, "text/html": html, "text/plain": HINT}, raw=True)
        self.still.show()

"""A model of the reader's own on a calculator's menu, from the config.json beside its weights.

The file stays where the kernel runs: in the lab on this machine, on the site in the browser.
"""

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import calc
from labkit.arguments import UserError
from labkit.calc import ModelConfig
from labkit.calc.hf_config import read_config
from labkit.notebook.controls import note, say


def config_upload(menu: Any, check: Callable[[ModelConfig], object]) -> Any:
    """Make a button that reads a config.json, adds its model to the menu, and selects it.

    menu: a Dropdown whose values are models. check: raises ValueError for a model that the
    calculator cannot count. A file that is refused leaves the menu as it is, and the reason stands
    below the button.
    """
    upload = widgets.FileUpload(
        accept=".json", description="config.json of your model", layout={"width": "auto"}
    )
    said = note()

    def take(_: Any) -> None:
        if not upload.value:
            return
        (file,) = upload.value
        upload.value = ()  # the same file may come again, corrected
        try:
            raw = read_config(bytes(file["content"]), file["name"])
            config = calc.model_from_config(raw)
            check(config)
        except (UserError, ValueError) as error:
            reason = str(error)
            named = reason if reason.startswith(file["name"]) else f"{file['name']}: {reason}"
            say(said, escape(named))
            return
        without = f"; without {', '.join(config.omitted)}" if config.omitted else ""
        count = calc.count_text(float(calc.num_parameters(config)))
        say(said, escape(f"{file['name']}: {count} parameters{without}"))
        if config not in [model for _, model in menu.options]:
            menu.options = (*menu.options, (f"your {raw['model_type']} ({count})", config))
        menu.value = config

    upload.observe(take, names="value")
    return widgets.VBox([upload, said])

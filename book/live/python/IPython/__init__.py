"""The part of IPython that ipywidgets imports; here no cells are run."""


def get_ipython() -> None:
    """Return no shell."""

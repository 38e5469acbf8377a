"""Nothing is displayed outside a cell."""


def display(*_: object, **__: object) -> None:
    """Do nothing."""


def clear_output(*_: object, **__: object) -> None:
    """Do nothing."""

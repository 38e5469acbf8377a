"""Can this Python make the environment of the lab? If not, one line that says why, and what to do.

Written so that a Python that is too old can still run it: 3.6 is enough.
"""

import sys

NEEDED = (3, 11)


def problem() -> "str | None":
    """Return the problem with this Python, with its cure, or None."""
    version = ".".join(str(number) for number in sys.version_info[:3])
    if sys.version_info[:2] < NEEDED:
        return (
            f"labkit needs Python {NEEDED[0]}.{NEEDED[1]} or newer, and {sys.executable} is "
            f"{version}. Install a newer one, or name yours: make lab PYTHON=python3.12"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            f"{sys.executable} ({version}) can't make environments: its venv module is not "
            f"complete. On Debian and Ubuntu: apt install python3.{sys.version_info[1]}-venv"
        )
    return None


if __name__ == "__main__":
    sys.exit(problem())

"""Install torch into the environment of the Python that runs this; `make` calls it.

    install_torch.py torch==2.13.0 FILE --index URL --cpu-index URL

The build comes from `--index`. Without one it comes from where this environment's torch came from,
which FILE remembers. In a new environment on Linux without an NVIDIA GPU it is PyTorch's CPU build,
if its index answers within five seconds: pip's own choice there is the build for CUDA, which takes
gigabytes. In all other cases pip chooses.
"""

import argparse
import http.client
import platform
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

# An index that answers later would be slow to install from, too.
_ANSWERS_WITHIN_S = 5.0
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
_ANOTHER = "For another build: make lab TORCH_INDEX=<its index URL>."


def main() -> int:
    """Install it and remember the index; pip's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("requirement", help="such as torch==2.13.0")
    parser.add_argument("file", type=Path, help="remembers the index")
    parser.add_argument("--index", default="", help="take the build from there")
    parser.add_argument("--cpu-index", default="", help="of the CPU build; not looked at if empty")
    given = parser.parse_args()
    index = given.index
    if not index and given.file.exists():
        index = given.file.read_text().strip()
    elif not index and given.cpu_index:
        index = index_without_gpu(given.requirement, given.cpu_index)
    # torch's own index has other versions of what torch needs: constraints would leave none.
    source = ["--index-url", index] if index else ["--constraint", "constraints.txt"]
    status = subprocess.run([*_PIP, *source, given.requirement]).returncode
    if status == 0:
        given.file.write_text(f"{index}\n")
    return status


def index_without_gpu(requirement: str, cpu_index: str) -> str:
    """Return the index of the CPU build where that is the right one and within reach, else
    nothing."""
    if platform.system() != "Linux" or has_nvidia_gpu():
        return ""
    if offers(cpu_index, requirement):
        print(f"No NVIDIA GPU here: torch's CPU build, from {cpu_index}. {_ANOTHER}", flush=True)
        return cpu_index
    print(
        f"No NVIDIA GPU here, but {cpu_index} did not offer {requirement} within "
        f"{_ANSWERS_WITHIN_S:.0f} s: pip chooses the build, which may be the one for CUDA "
        "(gigabytes).",
        flush=True,
    )
    return ""


def has_nvidia_gpu() -> bool:
    """Return whether NVIDIA's driver answers; a hanging one means a GPU too."""
    command = ["nvidia-smi"]
    try:
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False


def offers(index: str, requirement: str) -> bool:
    """Return whether the index answers in time and has a file of that version."""
    name, _, version = requirement.partition("==")
    pages: list[str] = []

    def read() -> None:
        try:
            with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/") as answer:
                pages.append(answer.read().decode(errors="replace"))
        except (OSError, ValueError, http.client.HTTPException):
            pass  # then there is no page, which is the answer

    # In a thread of its own: urllib's timeout is for each read, and for no look-up of a name.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_ANSWERS_WITHIN_S)
    return any(f"{name}-{version}{after}" in page for page in pages for after in ("%2B", "+", "-"))


if __name__ == "__main__":
    sys.exit(main())

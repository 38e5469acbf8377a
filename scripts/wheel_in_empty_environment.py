"""Build the wheel, install it with [lab] into an empty environment, and use it as a learner does.

    python scripts/wheel_in_empty_environment.py    minutes, and gigabytes of disk meanwhile

There, outside the clone: page 00 runs, an exercise is graded, a card is asked, a cluster is
planned, and JupyterLab opens with its settings and the stylesheet. The packages are the newest that
pyproject.toml allows, as `pip install` chooses them; torch is that of constraints.txt.
"""

import argparse
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXERCISE = "ring_all_reduce"
PLAN = "plan --model llama3-8b --cluster h100 --gpus 64 --top 1"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWERS_WITHIN_S, PAGE_WITHIN_S = 120, 600


def main() -> None:
    """Do it in a folder that is removed afterwards; a failure ends with what went wrong."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="w") as folder:  # short: of kernels' sockets
        used = Used(Path(folder))
        used.install()
        used.page_runs()
        used.exercise_is_graded()
        used.card_is_asked()
        used.cluster_is_planned()
        used.lab_opens()


class Used:
    """An environment in `folder`, and a learner's home beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "env" / "bin"
        self.course = folder / "my lab"
        (folder / "home").mkdir()
        outside = ("PYTHON", "JUPYTER", "VIRTUAL_ENV", "LABKIT", "XDG")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(outside)}

    def install(self) -> None:
        """Make the environment, and the course's folder by `labkit start`."""
        pip = [self.bin / "python", "-m", "pip", "--disable-pip-version-check"]
        source = self.folder / "source"
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "my-lab"))
        self.say("an empty environment", sys.executable, "-m", "venv", self.bin.parent)
        (torch,) = [
            line
            for line in (ROOT / "constraints.txt").read_text().splitlines()
            if line.startswith("torch==")
        ]
        index = ["--cpu-index", CPU_INDEX]
        script = ["scripts/install_torch.py", torch, self.folder / "index", *index]
        self.say(torch, self.bin / "python", *script, cwd=ROOT)
        self.say("the wheel", *pip, "wheel", "-q", "--no-deps", "-w", self.folder, source)
        (wheel,) = self.folder.glob("labkit-*.whl")
        self.say(f"{wheel.name}[lab]", *pip, "install", "-q", f"{wheel}[lab]")
        shutil.rmtree(source)
        self.env["HOME"] = str(self.folder / "home")
        self.say("labkit --version", self.bin / "labkit", "--version")
        self.say("labkit start", self.bin / "labkit", "start", self.course)

    def page_runs(self) -> None:
        """Run page 00 from top to bottom: no cell may end in an error."""
        page = self.course / "notebooks" / "00_start_here.ipynb"
        self.say("page 00 runs", self.bin / "jupyter-execute", page, cwd=page.parent)

    def exercise_is_graded(self) -> None:
        """Check a stub, then the solution in its place, on real ranks."""
        mine = self.course / "exercises" / f"{EXERCISE}.py"
        check = [self.bin / "labkit", "check", EXERCISE]
        self.say("a stub is graded", *check, cwd=self.course, status=1, part="not attempted")
        shutil.copy(self.course / "solutions" / mine.name, mine)
        self.say("an answer is graded", *check, cwd=self.course, part="passed")

    def card_is_asked(self) -> None:
        """Ask a card, with nobody at the keyboard."""
        self.say("a card is asked", self.bin / "labkit", "cards", "co-1", part="Card 1 of 1")

    def cluster_is_planned(self) -> None:
        """Rank layouts, and say why others lost."""
        self.say("labkit plan", self.bin / "labkit", *PLAN.split(), part="Why others lost")

    def lab_opens(self) -> None:
        """Open JupyterLab: the page answers, with the lab's settings and its stylesheet."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        token = secrets.token_hex()
        own = ["--no-browser", f"--port={port}", f"--IdentityProvider.token={token}"]
        log = (self.folder / "lab.log").open("w+")
        words = [self.bin / "labkit", "lab", self.course, "--", *own]
        server = subprocess.Popen(
            [str(word) for word in words], env=self.env, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + ANSWERS_WITHIN_S
            page = f"http://127.0.0.1:{port}/lab/{{}}?token={token}"
            while not read(page.format("tree/notebooks/00_start_here.ipynb")):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"JupyterLab does not open:\n{Path(log.name).read_text()}")
                time.sleep(0.2)
            notices = read(page.format("api/settings/@jupyterlab/apputils-extension:notification"))
            asks = json.loads(notices)["schema"]["properties"]["fetchNews"]["default"]
            if asks != "false" or not read(page.format("extensions/labkit/static/labkit.css")):
                raise SystemExit(f"JupyterLab lacks its settings (fetchNews {asks}) or stylesheet")
            print("ok  labkit lab: HTTP 200, with its settings and stylesheet", flush=True)
        finally:
            server.terminate()
            server.wait(60)

    def say(
        self, what: str, *words: object, status: int = 0, part: str = "", cwd: Path | None = None
    ) -> None:
        """Run a command and print that it is well and its seconds, or end with its output."""
        begin_s = time.monotonic()
        result = subprocess.run(
            [str(word) for word in words],
            cwd=cwd or self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PAGE_WITHIN_S,
        )
        if result.returncode != status or part not in result.stdout:
            wanted = f"wanted {status}, with {part!r}"
            raise SystemExit(f"{what}: status {result.returncode}, {wanted}:\n{result.stdout}")
        print(f"ok  {what}  ({time.monotonic() - begin_s:.0f} s)", flush=True)


def read(url: str) -> str:
    """Return what a page answers with status 200; nothing where it does not."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


if __name__ == "__main__":
    main()

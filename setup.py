"""Build settings that pyproject.toml cannot have: a wheel includes the course's files."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
# The stubs are cut from the solutions. Below labkit/ these files would be modules of the package.
COURSE = ["solutions/*.py", "notebooks/*.ipynb", "notebooks/*.md", "notebooks/pictures/*.svg"]
COURSE += ["docs/*.md", "docs/*.png"]


class BuildWithCourse(build_py):
    """Copies them into the wheel, as labkit/course_files; an editable install has the clone."""

    def run(self):
        """Build the package, then copy."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "labkit", "course_files")
        shutil.rmtree(target, ignore_errors=True)  # left by another build
        for file in (file for pattern in COURSE for file in HERE.glob(pattern)):
            copy = target / file.relative_to(HERE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


setup(cmdclass={"build_py": BuildWithCourse})

"""Build settings that pyproject.toml cannot have: a course in the wheel, data in every install."""

import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
# The stubs are cut from the solutions. Below labkit/ these files would be modules of the package.
COURSE = ["solutions/*.py", "notebooks/*.ipynb", "notebooks/*.md", "notebooks/pictures/*.svg"]
COURSE += ["docs/*.md", "docs/*.png", "docs/*.html", "docs/*.pdf", "AGENTS.md"]


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


class DataInEveryInstall(Distribution):
    """An editable install has the data files too: the stylesheet that JupyterLab looks for.

    There setuptools asks for `has_data`, and leaves the files out because nothing has that name.
    """

    def has_data(self):
        """Return whether there are data files."""
        return self.has_data_files()


setup(cmdclass={"build_py": BuildWithCourse}, distclass=DataInEveryInstall)

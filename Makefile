# Needs make (GNU make 3.81 is enough) and Python 3.11 or newer; everything else comes by itself.

PYTHON ?= python3
LAB_ARGS ?=
TEST_ARGS ?=
TORCH_INDEX ?=
# On Linux without an NVIDIA GPU, where TORCH_INDEX says nothing; empty: pip chooses the build.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
NOTEBOOKS ?= $(wildcard notebooks/*.ipynb)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
BOOK_STAMP := $(VENV)/.book-installed
# By exact version: asked for by name alone, or through a range, pip may fetch gigabytes for GPUs.
TORCH := $(shell grep '^torch==' constraints.txt)

# The stamp is the last thing that an install writes, and names the folder that it was made for.
# So an interrupted install, a moved folder and a Python that is gone all make .venv anew.
ifneq "$(shell $(BIN)/python -c '' 2>/dev/null && cat $(STAMP) 2>/dev/null)" "$(CURDIR)"
ANEW := yes
endif
ifneq "$(TORCH_INDEX)" ""
ifneq "$(shell cat $(VENV)/.torch-index 2>/dev/null)" "$(TORCH_INDEX)"
ANEW := yes
endif
endif
ifdef ANEW
.PHONY: $(STAMP)
endif

# Ranks import the lab's modules: they are compiled once, not in each of them.
unexport PYTHONDONTWRITEBYTECODE

# So many processes run tests side by side, and no result depends on how many. With four, tests of
# ranks left two cores idle for 9% of the time: more would not be faster, and each takes memory.
# The limit of a cell is for hangs: one of 20 s took over a minute on a slow machine with other work.
TEST_WORKERS ?= 4
PYTEST = IPYTHONDIR="$(CURDIR)/$(VENV)/ipython" MPLCONFIGDIR="$(CURDIR)/$(VENV)/matplotlib" $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help lab book test test-fast lint format notebooks pins clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

lab: $(STAMP)  ## open your copy of the course, my-lab, in a browser (LAB_ARGS="--no-browser --port 8899" reach Jupyter)
	@exec $(BIN)/python -m labkit.cli lab my-lab -- $(LAB_ARGS)

# The stage and the pages are made anew: an old page, of a file that is gone, would stay otherwise.
book: $(BOOK_STAMP)  ## build the website into build/book/html; `labkit web` shows it
	@$(BIN)/python -m book.stage
	@$(BIN)/python book/python_files.py build/book/stage/static/py >/dev/null
	@rm -rf build/book/html
	@$(BIN)/python -m sphinx -q -W --keep-going -j 2 -c book -d build/book/doctrees -b html build/book/stage build/book/html
	@find build/book/html -name '*.map' -delete
	@rm -rf build/book/jupyter_execute
	@$(BIN)/python -m book.check

test: $(BOOK_STAMP)  ## run every test, notebooks included (TEST_ARGS="-k ring" reach pytest)
	@$(PYTEST) -n $(TEST_WORKERS) tests notebooks \
	  --nbval --nbval-current-env --nbval-cell-timeout 600 \
	  --nbval-sanitize-with tests/notebooks/sanitize.cfg $(TEST_ARGS)

test-fast: $(STAMP)  ## run what takes seconds and at most two ranks: the inner loop
	@$(PYTEST) -n $(TEST_WORKERS) --fast tests/unit $(TEST_ARGS)

lint: $(STAMP)  ## look for mistakes without running anything: ruff, mypy, plain English
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/python scripts/style.py --check

format: $(STAMP)  ## repair what ruff can repair
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

notebooks: $(STAMP)  ## run the notebooks and store their outputs (NOTEBOOKS=notebooks/01_*.ipynb for some)
	@IPYTHONDIR="$(CURDIR)/$(VENV)/ipython" $(BIN)/python -m scripts.notebooks $(NOTEBOOKS)

pins:  ## write constraints.txt anew: today's newest versions, torch as it is (TORCH=torch==2.x.y)
	@$(PYTHON) scripts/check_python.py
	rm -rf build/pins
	$(PYTHON) -m venv build/pins
	build/pins/bin/python -m pip install $(TORCH)
	build/pins/bin/python -m pip install --editable '.[lab,serve,rl,peers,book,dev]'
	build/pins/bin/python scripts/pins.py > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/pins

clean:  ## remove .venv and everything else that make or a test has made
	rm -rf $(VENV) build dist labkit.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# An install copies the stylesheet of the pages to where JupyterLab finds it.
$(STAMP): pyproject.toml constraints.txt $(wildcard labextension/*.json labextension/static/*)
ifdef ANEW
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON) here. Install Python 3.11 or newer, or name yours: make lab PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) scripts/check_python.py
	@rm -f $(STAMP)
	$(PYTHON) -m venv --clear $(VENV)
endif
	@rm -f $(STAMP)
	$(BIN)/python scripts/install_torch.py $(TORCH) $(VENV)/.torch-index --index "$(TORCH_INDEX)" --cpu-index "$(TORCH_CPU_INDEX)"
	$(PIP) install --quiet --constraint constraints.txt setuptools
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[lab,serve,rl,dev]'
	@echo "$(CURDIR)" > $(STAMP)

# `make lab` does not need it; `make test` does.
$(BOOK_STAMP): $(STAMP)
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[book]'
	@touch $(BOOK_STAMP)

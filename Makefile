# Every target makes what it needs: a virtual environment in .venv with the package and its tools.
PYTHON ?= python3
PIP = .venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread for each process: two threads on a loaded machine can be many times slower.
TEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest

.PHONY: install demo test test-slow lint clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e ".[dev,peers,cluster,sweep]"
	touch $@

demo: install
	.venv/bin/nf demo

lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

test: lint
	$(TEST) -m "not slow and not bad_input" -n 2 --jaxtyping-packages=neuralfunctionals,beartype.beartype
	$(TEST) -m "not slow and bad_input"

test-slow: install
	$(TEST) -m slow

clean:
	rm -rf .venv

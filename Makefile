# Every target makes what it needs: a virtual environment in .venv with the package and its tools.
PYTHON ?= python3
PIP = .venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread for each process: two threads on a loaded machine can be many times slower.
TEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest

.PHONY: install demo docs test test-slow test-learn lint clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e ".[dev,docs,peers,cluster,sweep,web]"
	touch $@

demo: install
	.venv/bin/nf demo

docs: install
	.venv/bin/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d build/doctrees docs build/docs
	@echo "built: build/docs/index.html"

lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

test: lint
	$(TEST) -m "not slow and not learn and not bad_input" -n 2 --jaxtyping-packages=neuralfunctionals,beartype.beartype
	$(TEST) -m "not slow and bad_input" -n 2 --dist worksteal

test-slow: install
	$(TEST) -m slow -n 2 --dist worksteal

test-learn: install
	$(TEST) -m learn

clean:
	rm -rf .venv

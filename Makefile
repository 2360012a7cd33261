# Everything happens in .venv; PYTHON names the interpreter that makes it (3.11 or newer).
PYTHON ?= python3
# For the tests of the import only: nothing else needs torch. TORCH= leaves it out; they are skipped.
TORCH ?= torch==2.13.0
BIN := .venv/bin
comma := ,
# For two processors: one of three workers often waits, for the processes that its test starts.
PYTEST := $(BIN)/pytest -n 3 --dist worksteal --durations=25
# Python compiles what is imported when it first is; all of it would take longer than the install.
INSTALL := $(BIN)/pip install --quiet --no-compile
# So torch is imported, on the second processor, while the rest is installed.
IMPORT_TORCH := nice $(BIN)/python -c 'import torch.export, torch.distributed.tensor' 2>/dev/null
PIP := $(INSTALL) --constraint constraints.txt
# Hundreds of tests start processes that import the same modules: what was compiled is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all static part everything coverage docs docs-serve benchmarks-page clean

# Plan a training job and a shipped workload; writes job.json, job.png, plan.json and plan.png.
demo: .venv/demo
	$(BIN)/stagecut solve llama3-70b --cluster h100:8x8 --global-batch 512 --sequence 8192 \
	    --output job.json --plot job.png
	$(BIN)/stagecut verify job.json
	$(BIN)/stagecut solve gpt2-xl --time-limit 20 --output plan.json --plot plan.png
	$(BIN)/stagecut verify gpt2-xl plan.json --bound

# Types and format are checked beside the tests: what takes one processor fills what they leave idle.
test: .venv/test .dev/stagecut
	$(MAKE) --no-print-directory --keep-going --jobs=2 static part

# Slow tests too, all random cases and new ones, every page: before a release, and every night.
test-all: .venv/test .dev/stagecut
	$(MAKE) --no-print-directory --keep-going --jobs=2 static everything

static:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	nice $(BIN)/mypy

part:
	$(PYTEST)

everything:
	$(PYTEST) --everything

# Which lines no test reaches. Apart from `test`: it takes more than twice the CPU time.
coverage: .venv/test .dev/stagecut
	$(PYTEST) --cov=.dev/stagecut --cov-report=term:skip-covered

# The site, into build/site; whatever mkdocs warns of is an error.
docs: .venv/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: .venv/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The pages of benchmarks and of the papers, from the tables in benchmarks/results.
benchmarks-page: .venv/test .dev/stagecut
	PYTHONPATH=.dev $(BIN)/python benchmarks/page.py
	PYTHONPATH=.dev $(BIN)/python benchmarks/papers.py
	PYTHONPATH=.dev $(BIN)/python benchmarks/constants.py --page

.venv/bin/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip

.venv/demo: .venv/bin/python pyproject.toml constraints.txt $(shell git ls-files '*.py' | grep -v -E '^(tests|benchmarks)/')
	$(PIP) .
	touch $@

.venv/test: .venv/bin/python pyproject.toml constraints.txt
	$(if $(TORCH),$(INSTALL) $(TORCH))
	$(if $(TORCH),$(IMPORT_TORCH) &) $(PIP) '.[dev$(if $(TORCH),$(comma)launchers)]'
	touch $@

# The repository root is the package `stagecut`: tests and mypy find it by this link.
.dev/stagecut:
	mkdir -p .dev
	ln -sfn .. .dev/stagecut

clean:
	rm -rf .venv .dev build *.egg-info job.json job.png plan.json plan.png

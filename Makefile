# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
# `make demo` installs only what the demo needs (0.8 GB); the other targets add the tools of development (3 GB in all).
# Another Python than the first that fits: make test PYTHON=/path/to/python3.12

BIN := .venv/bin
LIGHT := .venv/.light
READY := .venv/.ready
FITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(FITS)' >/dev/null 2>&1 && { echo $$python; break; }; done)

NEWEST := .venv-newest
FLOWER := .venv-flower
FLWR ?= $(shell sed -n 's/.*"\(flwr\[simulation\][^"]*\)".*/\1/p' pyproject.toml)
NEWEST_PYTHON ?= $(shell python3.13 -c 'import venv' >/dev/null 2>&1 && echo python3.13)

# The build of the package is pinned as well: older versions of pip read the first variable for it, newer the second.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip --quiet --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test suite check unit full docs soak fuzz test-newest test-flower package format constraints clean

help:
	@echo "make demo         run the paper's experiment: figure, table and data"
	@echo "make test         what must hold before a commit lands: check, and all tests but the thorough ones"
	@echo "make check        format, lint, types"
	@echo "make unit         the quick tests, and the quick examples in the docstrings"
	@echo "make full         all tests: also the thorough ones, and all others once more as users compile them"
	@echo "make docs         build the site into site/"
	@echo "make package      build wheel and sdist, and try each in an empty environment"
	@echo "make soak         disturb runs at 200 random moments: each must resume to the same bits (20 to 40 minutes)"
	@echo "make fuzz         fuzz every decoder, a minute each"
	@echo "make test-newest  the quick tests with the newest JAX, on Python 3.13, in an environment of its own"
	@echo "make test-flower  the tests of the Flower room with the newest Flower that pyproject.toml allows, or FLWR=flwr==1.42.0"
	@echo "make format       format the code and repair what can be repaired"
	@echo "make constraints  renew the pinned versions"
	@echo "make clean        remove the environment and the caches"

demo: $(LIGHT)
	@$(BIN)/fedspam reproduce

# The rounds of the methods, the main paths of the commands and the docs are compiled as for users, the others quickly.
AS_USERS = $(shell grep -rl 'mark\.users' tests --include='test_*.py')
# the tests of a file share a process, and with it fixtures and compiled programs; tests/conftest.py orders the files
# bytecode is kept: many tests start processes, and what pytest compiles of the tests serves the next run
unexport PYTHONDONTWRITEBYTECODE
TESTS := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -q

# the check of types takes one core for a minute or two: the tests begin beside it
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 check suite

suite:
	@$(TESTS) -m "not thorough and not users" --durations 10
	@FEDSPAM_TEST_DEFAULTS=1 $(TESTS) -m "users and not thorough" --durations 10 $(AS_USERS)

check: $(READY)
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/basedpyright

unit: $(READY)
	@$(TESTS) -m "not slow and not thorough"

full: $(READY)
	@$(TESTS)
	@FEDSPAM_TEST_DEFAULTS=1 $(TESTS) -m "not thorough"

docs: $(READY)
	@# without --quiet, which would hide the warnings from --strict, too
	@$(BIN)/properdocs build --strict -f mkdocs.yml
	@echo site/index.html

package: $(READY)
	@.ci/package --claimed

soak: $(READY)
	@$(BIN)/python benchmarks/soak.py

fuzz: $(READY)
	@$(PIP) install 'atheris>=3,<4'
	@$(BIN)/python fuzz/run.py

# The packages of .venv serve this environment; only Flower, with what it asks for in other versions, is its own.
test-flower: $(READY)
	@$(BIN)/python -m venv --clear $(FLOWER)
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $$(echo $(FLOWER)/lib/python*/site-packages)/tests.pth
	@$(FLOWER)/bin/python -m pip --quiet --quiet install --upgrade '$(FLWR)'
	@$(FLOWER)/bin/python -m pip --quiet --quiet install --no-deps --ignore-installed \
		"flwr==$$($(FLOWER)/bin/python -c 'from importlib.metadata import version; print(version("flwr"))')"
	@$(FLOWER)/bin/python -c 'from importlib.metadata import version; print("flwr", version("flwr"))'
	@PYTHONPATH=src $(FLOWER)/bin/python -m pytest -n 2 --dist loadfile -q -m "not thorough" tests/flower tests/client

# The environment of test-newest has no pins, and neither Flower nor PyTorch: their tests are left out there.
test-newest:
	@$(if $(strip $(NEWEST_PYTHON)),:,echo "test-newest: there is no python3.13 on the PATH; name one: make test-newest NEWEST_PYTHON=/path/to/python3.13" >&2; false)
	@$(NEWEST)/bin/python -c 'import pip' 2>/dev/null || $(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	@$(NEWEST)/bin/python -m pip --quiet --quiet install --upgrade --upgrade-strategy eager \
		--editable '.[data,equinox,flax,optimistix,parquet]' hypothesis pytest pytest-xdist
	@$(NEWEST)/bin/python -c 'import jax, sys; print("jax", jax.__version__, "on Python", sys.version.split()[0])'
	@$(NEWEST)/bin/python -m pytest -n 2 --dist loadfile -q -m "not slow and not thorough" \
		--ignore src/fedspam/flower --ignore src/fedspam/models/adapters.py

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

$(LIGHT): pyproject.toml constraints.txt
	@$(if $(strip $(PYTHON)),:,false) && $(PYTHON) -c '$(FITS)' 2>/dev/null || { \
		echo "fedspam needs Python 3.11, 3.12 or 3.13 with its venv module, and found" \
			"$$($(or $(strip $(PYTHON)),python3) --version 2>/dev/null || echo none)."; \
		echo "Install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12"; \
		exit 1; } >&2
	@echo "installing into .venv with $$($(PYTHON) --version); this takes a minute"
	@$(BIN)/python -c 'import pip; $(FITS)' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@# pip before 24 does not see some of the versions in constraints.txt
	@$(BIN)/python -c 'import pip; assert int(pip.__version__.split(".")[0]) >= 24' 2>/dev/null || $(PIP) install --upgrade pip
	@$(PIP) install --editable .
	@touch $@

$(READY): $(LIGHT)
	@echo "installing the tools of development; this takes a minute or two"
	@$(PIP) install --editable '.[dev]' --editable ./client
	@touch $@

constraints:
	@$(MAKE) --no-print-directory clean
	@echo "# The versions that the tests run with, for Python 3.11 to 3.13 on the CPU. Renew them with \`make constraints\`." \
		> constraints.txt
	@echo "torch==2.13.0" >> constraints.txt
	@$(MAKE) --no-print-directory $(READY)
	@$(PIP) install hatchling
	@$(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch==' >> constraints.txt
	@touch $(LIGHT) $(READY)

clean:
	@rm -rf .venv .venv-newest .venv-flower .pytest_cache .ruff_cache .hypothesis dist site

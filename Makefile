# make demo | test | test-triton36 | lint | docs | wheel | bench | pictures | clean
#
# Everything is installed into $(VENV), and only when pyproject.toml has changed since: a file .stamp-* in there
# says so. Without a change nothing is installed, so every target but wheel works without a network.
#
#   make test PYTHON=python3.12                  another Python for a new venv
#   make test ARGS='tests/unit -k tile'          what to hand to pytest
#   make test-triton36                           the kernels' tests with the Triton of many GPU machines, in .venv-triton36
#   make test PACKAGE=dist/memsim-0.1.0-py3-none-any.whl VENV=.venv-ci
#                                                test a built wheel instead of this checkout

PYTHON ?= python3
VENV = .venv
PACKAGE =
ARGS =
# What the kernels are tested with, on the CPU.
TORCH = torch==2.13.0
# Their interpreter fails on loops with a later NumPy.
TRITON36 = triton==3.6.0
NUMPY36 = numpy<2.4
VENV36 = .venv-triton36

BIN := $(VENV)/bin
# Through the interpreter, not bin/pip, whose first line has a limited length.
INSTALL = $(BIN)/python -m pip --disable-pip-version-check install --quiet

ifneq ($(PACKAGE),)
ifeq ($(VENV),.venv)
$(error PACKAGE=$(PACKAGE) needs a venv of its own, where this checkout is not installed: add VENV=.venv-ci)
endif
endif

.PHONY: help demo test test-triton36 lint docs wheel bench pictures clean
# Two targets never install into one venv at the same time.
.NOTPARALLEL:

help:
	@echo "make demo    what attention moves, on two machines"
	@echo "make test    the tests"
	@echo "make test-triton36   the kernels' tests with an older Triton, in a second environment"
	@echo "make lint    style, types, import contracts"
	@echo "make docs    build/docs/index.html"
	@echo "make wheel   dist/memsim-*.whl"
	@echo "make bench   how fast the simulator itself is"
	@echo "make pictures   draw the pictures of the documentation again"
	@echo "make clean   remove what was built or cached; $(VENV) stays"

demo: $(VENV)/.stamp-base
	$(BIN)/memsim compare
	$(BIN)/memsim compare --gpu two-level

# The pytest executable, because python -m pytest would put the checkout in front of an installed wheel.
test: $(VENV)/.stamp-test
	$(if $(PACKAGE),MEMSIM_TEST_INSTALLED=1 )$(BIN)/pytest -n 2 $(ARGS)

# Planted faults are left out: they ask whether the tests see a fault, whatever Triton runs them.
test-triton36: $(VENV36)/.stamp-triton36
	$(if $(PACKAGE),MEMSIM_TEST_INSTALLED=1 )$(VENV36)/bin/pytest -n 2 tests/kernels --ignore tests/kernels/test_planted_faults.py $(ARGS)

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Every command that the pages show is run; a number in their text that none of them printed stops it.
docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx -q -W --keep-going -E -j 2 -b html docs build/docs
	@echo "build/docs/index.html"

wheel: $(VENV)/.stamp-dev
	rm -f dist/memsim-*.whl
	$(BIN)/python -m build --wheel

bench: $(VENV)/.stamp-base
	@set -e; for script in $(sort $(wildcard benchmarks/[a-z]*.py)); do echo "$$script"; $(BIN)/python "$$script"; done

pictures: $(VENV)/.stamp-plots
	$(BIN)/python docs/pictures.py

clean:
	rm -rf dist build .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .venv-*
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(VENV)/.stamp-venv:
	@version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.version_info >= (3, 11))' 2>/dev/null); \
	case "$$version" in \
	*True) ;; \
	*False) echo "memsim needs Python 3.11 or newer, but $(PYTHON) is $${version% *}. Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1 ;; \
	*) echo "memsim needs Python 3.11 or newer, but $(PYTHON) does not run. Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1 ;; \
	esac
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@touch $@

# torch first; nothing that it needs names a Triton, so that this one stays.
$(VENV36)/.stamp-triton36: pyproject.toml $(PACKAGE)
	@$(MAKE) --no-print-directory VENV=$(VENV36) PACKAGE= $(VENV36)/.stamp-venv
	@echo "installing memsim with $(TRITON36) into $(VENV36)"
	@$(VENV36)/bin/python -m pip --disable-pip-version-check install --quiet '$(TORCH)' '$(NUMPY36)'
	@$(VENV36)/bin/python -m pip --disable-pip-version-check install --quiet $(if $(PACKAGE),'$(PACKAGE)[test]',--editable '.[test]') '$(NUMPY36)'
	@$(VENV36)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps '$(TRITON36)'
	$(if $(PACKAGE),@$(VENV36)/bin/python -m pip --disable-pip-version-check install --quiet --force-reinstall --no-deps '$(PACKAGE)')
	@touch $@

ifeq ($(PACKAGE),)

$(VENV)/.stamp-base: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing memsim into $(VENV)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.stamp-plots: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing memsim and what draws into $(VENV)"
	@$(INSTALL) --editable '.[plots]'
	@touch $(VENV)/.stamp-base $@

$(VENV)/.stamp-test: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing memsim and its test tools into $(VENV)"
	@$(INSTALL) '$(TORCH)'
	@$(INSTALL) --editable '.[test,kernels]'
	@touch $(VENV)/.stamp-base $@

$(VENV)/.stamp-dev: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing memsim and its development tools into $(VENV)"
	@$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.stamp-base $@

$(VENV)/.stamp-docs: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing memsim and what builds its documentation into $(VENV)"
	@$(INSTALL) --editable '.[docs]'
	@touch $(VENV)/.stamp-base $@

else

# pip keeps an installed wheel of the same version, hence the second line.
$(VENV)/.stamp-test: $(PACKAGE) | $(VENV)/.stamp-venv
	@echo "installing $(PACKAGE) and its test tools into $(VENV)"
	@$(INSTALL) '$(TORCH)'
	@$(INSTALL) '$(PACKAGE)[test,kernels]'
	@$(INSTALL) --force-reinstall --no-deps '$(PACKAGE)'
	@touch $@

endif

# A bare machine needs only Python 3.11 or newer and make. Every target makes .venv by itself.
#
#   make quickstart    train a tool-using agent, every actor a process of its own
#   make test          the whole suite          make test-fast   pure and wire tests
#   make test-sglang   the suite of engines against a real SGLang server, on the CPU
#   make test-connectors   environments and trackers of other projects, their packages as they come
#   make test-clients  clients on Node, litellm, and vendors' tokenizers (needs npm)
#   make lint          style, types, layers     make format      rewrite the style
#   make sim SEED=7    replay one simulation    make bench       ratios against rivals and floors
#   make coverage      which lines ran          make clean       remove .venv and caches

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0

# Installing again is needed only when what is installed changes: the part of pyproject.toml above
# its line of tools, and the pins. The stamp carries their checksum in its name.
KEY := $(shell sed '/^\# ---- tools/q' pyproject.toml | cat - constraints/cpu.txt | cksum | cut -d' ' -f1)
BASE := $(VENV)/.base-$(KEY)
DEV := $(VENV)/.dev-$(KEY)
# setuptools warns of what tests/test_packaging.py makes sure of.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check \
  --no-compile -c constraints/cpu.txt
# pip compiles with one core, this with all. Some packages ship templates that are no Python; what
# does not compile is left alone, as pip leaves it.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

# SGLang has an environment of its own. Its stamp carries the checksum of all that goes into it.
SGLANG := .venv-sglang
SGLANG_VERSION := 0.5.21
SGLANG_OLD_VERSION := 0.5.17
SGLANG_KEY := $(shell { echo $(SGLANG_VERSION) $(SGLANG_OLD_VERSION); cat constraints/sglang.txt \
  tests/sglang/cpu/*.py tests/sglang/cpu/sgl_kernel/*.py; } | cksum | cut -d' ' -f1)
SGLANG_READY := $(SGLANG)/.ready-$(SGLANG_KEY)
SGLANG_PIP := PYTHONWARNINGS=ignore $(SGLANG)/bin/python -m pip install --quiet \
  --disable-pip-version-check --no-deps
# A wheel for CUDA, on a torch without it: two operations must be known by name, nobody calls them.
define DECLARED_OPS

if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor a, Tensor b, float c) -> Tensor")
endef
export DECLARED_OPS

# Each connector has an environment of its own beside ours: what their packages pin excludes one
# another. One of reasoning-gym's comes as source in C, so a compiler is needed.
CONNECTORS := .venv-connectors
CONNECTOR_NAMES := reasoning-gym openenv verifiers trackers
CONNECTORS_READY := $(CONNECTORS)/.ready-$(shell cat constraints/connectors/*.txt | cksum | cut -d' ' -f1)

# litellm, a client of the HTTP door, brings 60 packages that are none of ours.
CLIENTS := .venv-clients
CLIENTS_READY := $(CLIENTS)/.ready-$(shell cksum < constraints/clients.txt | cut -d' ' -f1)

.PHONY: quickstart test test-fast test-sglang test-sglang-old test-connectors test-clients lint format bench sim coverage docs golden wheel install clean
.DEFAULT_GOAL := quickstart

quickstart: $(BASE)
	$(BIN)/milepost quickstart

# Three files at a time: much of the suite waits for processes of its own. Whole runs take longest
# and go first (testpaths), so that no single file is left at the end.
test: $(DEV)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-fast: $(DEV)
	$(BIN)/pytest tests/test_*.py tests/unit tests/wire

test-sglang: $(DEV) $(SGLANG_READY)
	MILEPOST_SGLANG_PYTHON=$(CURDIR)/$(SGLANG)/bin/python \
	  $(BIN)/pytest -n 2 --dist loadfile tests/sglang tests/contract -k "not embedded"

# The contract suite on the oldest release that is served.
test-sglang-old: $(DEV) $(SGLANG_READY)
	MILEPOST_SGLANG_PYTHON=$(CURDIR)/$(SGLANG)/bin/python \
	  MILEPOST_SGLANG_OLD=$(CURDIR)/$(SGLANG)/old \
	  $(BIN)/pytest tests/contract -k "old"

test-connectors: $(DEV) $(CONNECTORS_READY)
	@set -e; for name in $(CONNECTOR_NAMES); do \
	  $(CONNECTORS)/$$name/bin/python -P -m pytest tests/connectors/test_$$(echo $$name | tr - _).py; \
	done

test-clients: $(DEV) $(CLIENTS_READY)
	MILEPOST_NETWORK=1 MILEPOST_CLIENTS_PYTHON=$(CURDIR)/$(CLIENTS)/bin/python $(BIN)/pytest tests/proc/test_guest_typescript.py \
	  tests/proc/test_session_http_clients.py tests/unit/session/test_qwen3_real.py \
	  tests/unit/session/test_real_tokenizers.py

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	PYTHONPATH=.typing $(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/mypy tests

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(DEV)
	$(BIN)/pytest tests/bench -s

sim: $(DEV)
	$(BIN)/pytest tests/sim -s --sim-seed $(SEED)

coverage: $(DEV)
	$(BIN)/pytest tests/unit tests/wire tests/sim --cov --cov-report=term

docs: $(DEV)
	PYTHONPATH=tests $(BIN)/python -P tests/docs_tables.py

# The bytes of every message; only before a release, or with a new protocol version.
golden: $(DEV)
	PYTHONPATH=tests $(BIN)/python -P tests/wire/golden.py

wheel: $(DEV)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/check-wheel-contents build/wheel

install: $(DEV)

$(BASE): | $(VENV)/bin/python
	@echo "installing milepost and what it stands on into $(VENV) (a few minutes the first time)"
	$(PIP) --editable .
	@$(COMPILE)
	@rm -f $(VENV)/.base-* && touch $@

$(DEV): $(BASE)
	@echo "installing the tools of the developers into $(VENV)"
	$(PIP) --editable '.[dev]'
	@$(COMPILE)
	@rm -f $(VENV)/.dev-* && touch $@

$(SGLANG_READY):
	@echo "installing SGLang for the CPU into $(SGLANG) (a few minutes the first time)"
	rm -rf $(SGLANG)
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG_PIP) -r constraints/sglang.txt
	$(SGLANG_PIP) sglang==$(SGLANG_VERSION) torchvision==0.28.0
	@printenv DECLARED_OPS >> $$($(SGLANG)/bin/python -c 'import importlib.util; \
	  print(importlib.util.find_spec("torchvision").submodule_search_locations[0])')/extension.py
	$(SGLANG_PIP) ./tests/sglang/cpu
	@rm -rf tests/sglang/cpu/build tests/sglang/cpu/*.egg-info
	$(SGLANG_PIP) --target $(SGLANG)/old sglang==$(SGLANG_OLD_VERSION)
	@touch $@

$(CONNECTORS_READY): $(DEV)
	@echo "installing the packages of the connectors into $(CONNECTORS) (a minute the first time)"
	rm -rf $(CONNECTORS)
	@set -e; for name in $(CONNECTOR_NAMES); do \
	  $(BIN)/python -m venv $(CONNECTORS)/$$name; \
	  site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  echo "import site; site.addsitedir('$$($(BIN)/python -c "$$site")')" \
	    > "$$($(CONNECTORS)/$$name/bin/python -c "$$site")/milepost.pth"; \
	  PYTHONWARNINGS=ignore $(CONNECTORS)/$$name/bin/python -m pip install --quiet \
	    --disable-pip-version-check --no-deps -r constraints/connectors/$$name.txt; \
	done
	@touch $@

$(CLIENTS_READY):
	@echo "installing litellm into $(CLIENTS) (a minute the first time)"
	rm -rf $(CLIENTS)
	$(PYTHON) -m venv $(CLIENTS)
	PYTHONWARNINGS=ignore $(CLIENTS)/bin/python -m pip install --quiet \
	  --disable-pip-version-check --no-deps -r constraints/clients.txt
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; name a newer one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(SGLANG) $(CONNECTORS) $(CLIENTS) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

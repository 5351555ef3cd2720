# Everything here needs Python 3.11 or newer and make; the rest is installed into .venv, beside this file.
#     make quickstart PYTHON=python3.12     builds .venv with another Python

PYTHON ?= python3
BIN := .venv/bin
PINNED := pyproject.toml constraints.txt

# A .venv whose Python does not run, or whose install was cut short, is made anew.
SOUND := $(shell [ ! -e .venv/.unfinished ] && \
	$(BIN)/python -c 'import pip, sys; print(sys.version_info >= (3, 11))' 2>/dev/null)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help quickstart pictures test slow check environment clean venv
ifneq ($(SOUND),True)
.PHONY: .venv/.core .venv/.test .venv/.environment
endif

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r command does; do \
		printf '  %-18s %s\n' "$$command" "$$does"; done

quickstart: .venv/.core ## install, then train and evaluate a tiny teacher and its student; about 4 minutes of work
	$(BIN)/bertrelay run quickstart

pictures: .venv/.core ## run three recipes on sample data, then draw the pictures of the README from them
	for recipe in quickstart biomedical clinic; do $(BIN)/bertrelay run $$recipe || exit 1; done
	$(BIN)/python scripts/pictures.py runs docs/pictures

test: check ## install, then check and test everything, without the network
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

slow: .venv/.test ## install, then run the tests that take minutes, one after another
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m slow

check: .venv/.test ## lint, format and types alone
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

environment: .venv/.environment ## build .venv with every extra: search, serve, mteb, onnx, openvino, ray, trackers, benchmark, dev
	@echo "Ready: .venv has every extra. To use it: . .venv/bin/activate"

clean: ## remove .venv and caches; runs/ stays
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .hypothesis .ruff_cache

# The levels hold one another, so a higher one stamps those below it too.
.venv/.core: $(PINNED) | venv
	$(call install,the core,.)
	@touch .venv/.core

.venv/.test: $(PINNED) | venv
	$(call install,the core and what tests need,.[dev$(comma)benchmark$(comma)search$(comma)serve$(comma)mteb$(comma)openvino$(comma)ray])
	@touch .venv/.core .venv/.test

.venv/.environment: $(PINNED) | venv
	$(call install,the core and every extra,.[search$(comma)serve$(comma)mteb$(comma)openvino$(comma)ray$(comma)trackers$(comma)benchmark$(comma)dev])
	@touch .venv/.core .venv/.test .venv/.environment

comma := ,
define install
@echo "Installing $(1) of BertRelay into .venv; the first time this takes some minutes."
@touch .venv/.unfinished
@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '$(2)'
@rm .venv/.unfinished
endef

venv:
ifneq ($(SOUND),True)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
		"BertRelay needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)." \
		"Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo \
		"$(PYTHON) has no venv, which builds .venv; install it (Debian, Ubuntu: apt install python3-venv)" \
		"or name another Python: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@rm -rf .venv
	@mkdir .venv && touch .venv/.unfinished
	@$(PYTHON) -m venv .venv
endif

# Everything here works from a fresh clone: each target first makes what it needs.
#
#   make demo    the main job: the shipped DiT's linear layers through the 64x64 RTL
#   make test    the default tests          make test-full   all tests
#   make bench   the figures of the README  make synth       area and timing, with pictures
#   make lint    style, format and types    make fpga        a small MPU on an ECP5
#   make quality bits and image quality of DSTAR and its rivals (hours; can be resumed)
#
# Another index for PyTorch's CPU build, if pip's default would bring a CUDA one:
#   make test PIP_FLAGS="--extra-index-url URL"

PYTHON ?= python3
PIP_FLAGS ?=
JOBS ?= 2
SEED ?=
VENV := .venv
BIN := $(VENV)/bin
# Each editable installation would be told to mind folders of the same name.
PIP := PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --quiet $(PIP_FLAGS) --constraint constraints.txt
DEMO_STEPS ?= 0:28
# Processes run side by side here; BLAS threads within them would only compete.
export OPENBLAS_NUM_THREADS := 1
OUT := out

.DEFAULT_GOAL := help
.PHONY: help demo test test-full bench quality synth fpga lint format types clean

help:
	@sed -n '3,10s/^#//p' Makefile

$(BIN)/python:
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The demo needs no PyTorch; the tests need everything.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the demo needs (about a minute)"
	@$(PIP) --editable '.[sim]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what tests and benches need (a few minutes)"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@mkdir -p $(OUT)
	$(BIN)/dstar doctor
	$(BIN)/dstar gen mpu --preset paper -o $(OUT)/mpu
	$(BIN)/dstar capture --builtin --steps 28 -o $(OUT)/dit.safetensors
	$(BIN)/dstar compare $(OUT)/dit.safetensors --unit mpu --preset paper \
	    --layers 'blocks.*' --steps $(DEMO_STEPS) --json $(OUT)/compare.json

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) $(if $(SEED),--seed=$(SEED))

test-full: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) -m "full or not full" $(if $(SEED),--seed=$(SEED))

bench: $(VENV)/.dev
	@set -e; for script in $(filter-out bench/synth_% bench/quality_%,$(wildcard bench/*.py)); do echo "== $$script"; $(BIN)/python $$script; done

quality: $(VENV)/.dev
	@mkdir -p $(OUT)/quality
	$(BIN)/dstar quality --steps 28 --json $(OUT)/quality/28.json -o $(OUT)/quality
	$(BIN)/dstar quality --steps 50 --methods w8a8,fmdq-x2,sar,sar-mixed,dstar \
		--json $(OUT)/quality/50.json -o $(OUT)/quality/50
	$(BIN)/python bench/quality_modes.py
	$(BIN)/python bench/quality_attention.py
	$(BIN)/python bench/quality_tokens.py

# Every table and picture of docs/area.md (half an hour of processor time; needs open libraries).
# What was measured and has not changed since is kept: an interrupted run goes on where it was.
synth: $(VENV)/.dev
	@set -e; for name in table control floor sweep reference variants fpga pictures; do \
	    echo "== bench/synth_$$name.py"; $(BIN)/python bench/synth_$$name.py; done

# The tiny MPU through place and route on an ECP5.
fpga: $(VENV)/.dev
	@mkdir -p $(OUT)/fpga
	$(BIN)/dstar fpga mpu --preset tiny --json $(OUT)/fpga/tiny.json

lint: $(VENV)/.dev types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy finds the package through a folder that names it: the five folders are its subpackages.
types: $(VENV)/.dev
	@mkdir -p build/types/dstar
	@for part in golden rtl gen verif synth; do ln -sfn ../../../$$part build/types/dstar/$$part; done
	cd build/types && MYPYPATH=. ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml \
	    $(foreach part,golden rtl gen verif synth,-p dstar.$(part))

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis

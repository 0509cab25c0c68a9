# The one list of commands: people, hooks and CI use these. `make` alone prints it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PARTS := contracts cli worker_shim gateway planner
EDITABLE := contracts "cli[replay]" worker_shim gateway planner
CARGO := cargo
MANIFEST := router_rs/Cargo.toml
RUST_SOURCES := $(shell find router_rs -name target -prune -o \( -name '*.rs' -o -name 'Cargo.*' -o -name '*.py' -o -name pyproject.toml \) -print)

.PHONY: help
help: ## This list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | column -t -s "$$(printf '\t')"

.PHONY: install
install: $(VENV)/.parts $(VENV)/.native ## Build and install everything into .venv (safe to repeat)

$(VENV)/bin/python:
	@command -v $(CARGO) >/dev/null || { echo "Rust is needed to build the core: install rustup (Debian: apt install rustup), then 'rustup default stable'." >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: constraints.txt requirements-dev.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

$(VENV)/.native: $(RUST_SOURCES) $(VENV)/.tools
	cd router_rs && VIRTUAL_ENV=$(CURDIR)/$(VENV) PATH="$(CURDIR)/$(BIN):$$PATH" maturin develop --release --locked --quiet
	@touch $@

$(VENV)/.parts: $(PARTS:%=%/pyproject.toml) $(VENV)/.native
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt $(EDITABLE:%=-e %)
	@touch $@

.PHONY: demo
demo: install ## The main job: 96 agents on 5 emulated workers under three policies, compared
	$(BIN)/heddle demo

.PHONY: demo-sglang
demo-sglang: install sglang-cpu ## Agents on two real SGLang servers on the CPU, and a trajectory's KV moved between them
	$(BIN)/python worker_shim/sglang_cpu/demo.py

.PHONY: up
up: install ## Serve on http://127.0.0.1:8000 with emulated workers until Ctrl-C
	$(BIN)/heddle up

.PHONY: test
test: test-rust test-python test-sglang ## All tests: fast ones first, then whole systems, then a real SGLang

.PHONY: test-rust
test-rust: ## Unit and property tests of the Rust crates
	$(CARGO) test --quiet --locked --manifest-path $(MANIFEST) --workspace --exclude heddle-py

.PHONY: test-python
test-python: install bench-tools ## Python tests over real sockets
	.ci/services
	$(BIN)/pytest -q -n auto --dist loadfile -m "not services and not system and not faults and not real_sglang and not gpu"
	$(BIN)/pytest -q -n auto --dist loadfile -m "services or system"

.PHONY: test-faults
test-faults: install ## Processes killed, stores stopped, clocks off, networks cut, under a rollout (minutes; CI runs it too)
	.ci/services
	$(BIN)/pytest -q -n auto --dist loadfile -m faults

.PHONY: sglang-cpu
sglang-cpu: ## Install a real SGLang for the CPU outside of the clone (6 GB, once)
	worker_shim/sglang_cpu/install

.PHONY: test-sglang
test-sglang: install sglang-cpu ## Two real SGLang servers on the CPU: priorities, moves of KV, what can break them
	$(BIN)/pytest -q -m "real_sglang or gpu"

.PHONY: test-gpu
test-gpu: install ## The same on a CUDA host with SGLang installed; elsewhere listed as skipped
	$(BIN)/pytest -q -m gpu

.PHONY: lint
lint: install ## ruff, mypy strict, clippy, rustfmt, stubtest, import table
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(CARGO) fmt --manifest-path $(MANIFEST) --all --check
	$(CARGO) clippy --quiet --locked --manifest-path $(MANIFEST) --workspace --all-targets -- -D warnings
	$(BIN)/python -m mypy.stubtest heddle_core._native
	$(BIN)/pytest -q tests/test_architecture.py

.PHONY: format
format: install ## Format Python and Rust
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(CARGO) fmt --manifest-path $(MANIFEST) --all

.PHONY: bench-tools
bench-tools: ## Build the compiled load generator and mock upstream
	$(CARGO) build --quiet --release --locked --manifest-path $(MANIFEST) -p heddle-loadgen

.PHONY: bench
bench: install bench-tools ## Decision core, wire, and gateway against direct and sglang-router
	$(CARGO) bench --quiet --locked --manifest-path $(MANIFEST) -p heddle-core --bench solver
	$(CARGO) bench --quiet --locked --manifest-path $(MANIFEST) -p heddle-core --bench decision
	$(BIN)/python benchmarks/bench_wire.py
	$(BIN)/python benchmarks/bench_kv_transport.py
	$(BIN)/heddle bench gateway --peer sglang-router --json out/bench-gateway.json

.PHONY: bench-history
bench-history: install ## Step records into PostgreSQL and SQLite
	$(BIN)/python benchmarks/bench_history.py --json out/bench-history.json

.PHONY: bench-predictor
bench-predictor: install ## Length predictor on recorded sets: make bench-predictor DATA="FILE..."
	$(BIN)/python benchmarks/bench_predictor.py $(DATA)

.PHONY: bench-rollout
bench-rollout: install ## A live rollout on 8 emulated workers under Heddle and baselines, simulated beside (25 min)
	$(BIN)/heddle bench rollout --groups 96 --samples 8 --scale-output 2 --speed 20 --json out/bench-rollout.json

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(VENV) router_rs/target out

# Everything runs from a clean clone with Rust, Python 3.11 or newer and a C compiler; `make build` makes .venv.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: all build demo tiny-model test bench soak fuzz lint fmt test-rust test-schedules test-python test-instructions clean

# The first interpreter that is new enough; override with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# uv links wheels out of its cache instead of unpacking them again: torch alone is 5 GB in each environment otherwise.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := $(BIN)/python -m uv pip install --quiet --python $(BIN)/python
RUST_SOURCES := $(shell find src -name '*.rs') Cargo.toml pyproject.toml $(wildcard Cargo.lock)
PY_TREES := $(wildcard python packaging tests benches)

all: build

# Tools and the package's own needs. Done again only when pyproject.toml changes.
$(VENV)/.tools: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; set PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian install python3-venv" >&2; exit 1; }
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; e = p["optional-dependencies"]; \
		print("\n".join(p["dependencies"] + e["report"] + e["runner"] + e["gcache"] + e["dev"]))' > $(VENV)/requirements.txt
	$(PIP) "uv>=0.9,<1"
	$(UV) --requirement $(VENV)/requirements.txt
	@touch $@

# The extension in release mode, the programs that ship with it, and the editable package. Done again only when a Rust
# source changes.
$(VENV)/.extension: $(VENV)/.tools $(RUST_SOURCES) packaging/programs.py
	$(BIN)/python packaging/programs.py
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	@touch $@

build: $(VENV)/.extension

demo: build
	$(BIN)/mimo-cache demo

# Everything of docs/performance.md, beside a peer where one is installed (benches/README.md); about 25 minutes.
bench: build
	$(BIN)/mimo-cache bench model --json
	$(BIN)/mimo-cache bench tree --json --plot target/growth.svg
	$(BIN)/mimo-cache bench gcache --json
	$(BIN)/mimo-cache bench disk --json
	$(BIN)/mimo-cache bench tiers --json --plot target/first-tokens.svg

# Trains the tiny checkpoint anew: up to 50 minutes on two cores. Interrupted, it goes on where its state was last saved. To
# ship the result, copy what is in target/tiny-model, without run/, to python/mimo_cache/models/tiny.
tiny-model: build
	$(BIN)/python -m mimo_cache.models.training target/tiny-model $(if $(wildcard target/tiny-model/run/state.pt),--resume)

fmt: $(VENV)/.tools
	cargo fmt
	cargo fmt --manifest-path fuzz/Cargo.toml
	$(BIN)/ruff check --quiet --fix $(PY_TREES)
	$(BIN)/ruff format --quiet $(PY_TREES)

# Warnings are errors. The extension is linted as well, so PyO3 needs an interpreter to look at.
lint: build
	cargo fmt --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --quiet --all-targets --features remote -- -D warnings
	cargo clippy --quiet --tests --features shuttle -- -D warnings
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --quiet --lib --features python -- -D warnings
	$(BIN)/ruff check $(PY_TREES)
	$(BIN)/ruff format --check $(PY_TREES)
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest mimo_cache._core

# Optimised, with debug assertions: every operation of the state machines checks the integrity of the whole cache. The object
# store of the remote tier's tests comes from PyPI.
test-rust: $(VENV)/.tools
	MIMO_MOTO=$(CURDIR)/$(BIN)/moto_server cargo test --profile quick --features remote

# Orders of locks that threads rarely meet by themselves.
test-schedules:
	cargo test --profile quick --features shuttle --test shuttle

test-python: build
	$(BIN)/python -m pytest

# Instructions of the hot operations must not grow with what is cached; says so and passes where valgrind is missing.
test-instructions:
	$(PYTHON) benches/instructions.py --quick

test: lint test-rust test-schedules test-python test-instructions

# The long runs: SOAK times the cases of every property, a million operations, more schedules, random bytes, and deliberate
# faults that the suite must catch. SOAK=100 fills a night.
SOAK ?= 10

soak: build
	MIMO_MOTO=$(CURDIR)/$(BIN)/moto_server PROPTEST_CASES=$$((256 * $(SOAK))) MIMO_SOAK=$(SOAK) cargo test --profile quick --features remote
	cargo test --profile quick --features remote --test soak -- --ignored --nocapture
	MIMO_CASES=$$((300 * $(SOAK))) cargo test --profile quick --features shuttle --test shuttle
	MIMO_SOAK=$(SOAK) MIMO_FAULT_ROUNDS=$$((20 * $(SOAK))) $(BIN)/python -m pytest
	@if command -v c++ >/dev/null; then $(MAKE) fuzz; else echo "no C++ compiler, so the fuzz target is left out" >&2; fi
	$(BIN)/python tests/mutations.py

# The fuzz targets without coverage feedback; `cargo +nightly fuzz run operations` gives that where cargo-fuzz is installed.
fuzz:
	cargo build --manifest-path fuzz/Cargo.toml
	for target in operations shm_superblock shm_slot disk_segment wire ring_config; do \
		fuzz/target/debug/$$target -max_total_time=$$((10 * $(SOAK))) -rss_limit_mb=4096 || exit 1; done

clean:
	rm -rf target $(VENV) python/mimo_cache/*.so

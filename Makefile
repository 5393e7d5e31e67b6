# Needs Rust (cargo, rustfmt, clippy) and a C compiler; for tests also a C++ compiler, for tests and documentation Python 3.11. Everything else is set up from here.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

CARGO ?= cargo
PYTHON ?= python3
export CARGO PYTHON

.PHONY: help demo test lint quick-lint fmt clippy rooms shared-builds docs build environments reference unit loom alerts interop python python-env newcomer browser terminal packages deb image screenshots recording wheel bench bench-scale bench-python bench-dashboard bench-picker bench-gateway bench-peers dynamo-vectors soak soak-gateway heartbeats flap attacks dist install uninstall clean rust-tools compilers test-compilers interpreter deny miri fuzz test-long

help:
	@echo "make demo    a tour: simulated engines of every kind, conversations routed by what they hold, faults"
	@echo "make test    everything that CI runs"
	@echo "make test-long  what takes longer: ten times the property cases, miri over the index, advisories of dependencies"
	@echo "make fuzz    every fuzz target for a minute each (SECONDS=60)"
	@echo "make lint    formatting, lints, the direction of dependencies, their licences, and where the documentation points"
	@echo "make wheel   the Python package, as one wheel in dist/"
	@echo "make dist    the program with all that belongs to it, as one archive in dist/; make deb, make image (PORTABLE=1: for glibc 2.28 and newer)"
	@echo "make install the same, into PREFIX (default: /usr/local); make uninstall takes it away"
	@echo "make reference  write the parts of docs/reference that are made from the code"
	@echo "make bench   measurements"
	@echo "make bench-scale  what a plane costs by the size of its fleet (ENGINES=\"50 5000\")"
	@echo "make bench-picker  the endpoint picker behind a real Envoy, beside one that decides nothing"
	@echo "make bench-peers  the index beside its peers"
	@echo "make bench-gateway  the gateway beside SMG's and vLLM's router: latency, processor time, memory (BENCH=--quick)"
	@echo "make soak    random faults against a running plane, every answer checked (SOAK_SECONDS=, SOAK_FAULTS=)"
	@echo "make soak-gateway  100,000 requests through a gateway whose engines fail: none lost, none mixed up"
	@echo "make attacks hostile clients against a running plane, with a good one beside them"
	@echo "make heartbeats, make flap  many healthy streams: what they cost, and that none is taken for silent (DURATION=, STREAMS=)"
	@echo "make clean   remove what was built"

# DEMO takes arguments: make demo DEMO="--seconds 20 --plain"
demo: compilers
	$(CARGO) build --release -p kvplane
	$(CARGO) run --quiet --release -p kvplane -- demo $(DEMO)

# The parts, in an order that uses the machine well; each of them is a target too.
test:
	@scripts/parts.sh

lint: quick-lint clippy

# All of it but clippy, which `make test` runs as it compiles.
quick-lint: rust-tools test-compilers interpreter fmt rooms shared-builds deny docs

fmt:
	$(CARGO) fmt --all -- --check

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

rooms: interpreter
	$(PYTHON) scripts/check-rooms.py

# Features of libraries are the same for the program, its tests and the Python package: each library is built once.
shared-builds: interpreter
	@scripts/fetch.sh
	$(PYTHON) scripts/shared-builds.py

# Licences, sources and second versions of dependencies, by deny.toml; advisories where cargo-deny and its database are there.
deny: interpreter
	@scripts/deny.sh

docs: interpreter
	$(PYTHON) scripts/check-docs.py
	$(PYTHON) scripts/check-book.py

# Pages that are made from the code; `make unit` and `make interop` fail when one of them is not up to date.
reference: compilers interpreter
	KVPLANE_WRITE_REFERENCE=1 $(CARGO) test -p kvplane-metrics --lib reference
	$(CARGO) run --quiet -p kvplane -- config schema | $(PYTHON) scripts/config-page.py
	$(PYTHON) scripts/messages-page.py

# Everything that tests run. The Python package is built as pip does it, by `make python`.
TESTED := --workspace --exclude kvplane-python
build: test-compilers
	@scripts/fetch.sh
	$(CARGO) test $(TESTED) --no-run

# Tests wait most of the time: more of them run at once than there are processors.
unit: test-compilers
	@scripts/unit-tests.sh $(TESTED)

# All that the other parts install, so that they need no network afterwards.
environments: python-env
	@scripts/netns-env.sh
	@scripts/newcomer-env.sh
	@scripts/interop-env.sh dynamo || echo "environments: the tests against Dynamo are skipped" >&2
	@scripts/prompt-env.sh || echo "environments: the tests of prompts against transformers are skipped" >&2
	@scripts/interop-env.sh envoy || echo "environments: the tests with Envoy are skipped" >&2
	@scripts/interop-env.sh sdk || echo "environments: the tests with the clients of OpenAI and Anthropic are skipped" >&2
	@scripts/promtool.sh >/dev/null
	@scripts/browser-env.sh
	@scripts/terminal-env.sh
	@scripts/debian-root.sh >/dev/null
	@scripts/python-tests.sh --environment

# Interleavings of the index's readers and writer, as many as loom's bounds allow. In a directory of its own: the flag is every crate's.
loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test --profile loom --target-dir target/loom -p kvplane-index --lib loom

# What CI does not wait for. Where miri is missing, AddressSanitizer or valgrind takes its place.
test-long: test-compilers interpreter
	PROPTEST_CASES=2560 PROPTEST_RNG_SEED=random scripts/unit-tests.sh $(TESTED)
	scripts/memory-checks.sh any
	scripts/deny.sh --install

# The index under miri: what loom does not follow, addresses kept as numbers and slices of raw memory. MIRI_TESTS takes arguments:
# make miri MIRI_TESTS="--lib map"
miri:
	MIRI_TESTS="$(MIRI_TESTS)" scripts/memory-checks.sh miri

# Needs a nightly compiler. FUZZ names some of the targets: make fuzz SECONDS=600 FUZZ="recorder link"
SECONDS ?= 60
fuzz: compilers
	scripts/fuzz.sh "$(SECONDS)" $(FUZZ)

# Alert rules and the Grafana dashboard.
alerts: python-env
	promtool=$$(scripts/promtool.sh) && .venv/bin/python scripts/check-alerts.py "$$promtool"

# PYTEST takes arguments: make interop PYTEST="-k grpc -x"
interop: compilers python-env
	@scripts/netns-env.sh
	@scripts/interop-env.sh dynamo || echo "interop: the tests against Dynamo are skipped" >&2
	@scripts/prompt-env.sh || echo "interop: the tests of prompts against transformers are skipped" >&2
	@scripts/interop-env.sh envoy || echo "interop: the tests with Envoy are skipped" >&2
	@scripts/interop-env.sh sdk || echo "interop: the tests with the clients of OpenAI and Anthropic are skipped" >&2
	$(CARGO) build -p kvplane
	KVPLANE_BIN="$${KVPLANE_BIN:-$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/kvplane}" scripts/pytest-parallel.sh .venv/bin/python 5 tests/interop $(PYTEST)

python-env: interpreter
	@scripts/python-env.sh

# The Python package in a clean environment. PYTEST takes arguments here too.
python: compilers interpreter
	scripts/python-tests.sh $(PYTEST)

# What the README and the page of five minutes say, done in a fresh clone.
newcomer: compilers python-env
	@scripts/newcomer-env.sh
	$(CARGO) build -p kvplane
	.venv/bin/python -m pytest tests/newcomer $(PYTEST)

# The dashboard in Debian's chromium. PYTEST takes arguments here too.
browser: compilers interpreter
	@scripts/browser-env.sh
	$(CARGO) build -p kvplane
	KVPLANE_BIN="$${KVPLANE_BIN:-$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/kvplane}" scripts/pytest-parallel.sh .venv-browser/bin/python 2 tests/browser $(PYTEST)

# Screens of status, top and demo on terminals of two sizes, in tmux.
terminal: compilers python-env
	@scripts/terminal-env.sh
	$(CARGO) build -p kvplane
	.venv/bin/python -m pytest tests/terminal $(PYTEST)

# Archive, package and image, installed and run in roots of their own. KVPLANE_DEBIAN=bullseye chooses another Debian.
packages: compilers python-env
	@scripts/debian-root.sh
	$(CARGO) build -p kvplane
	.venv/bin/python -m pytest tests/packages $(PYTEST)

# The animation of docs/images: an asciicast and an SVG. Look at it before you commit it.
recording: compilers
	@scripts/terminal-env.sh
	$(CARGO) build -p kvplane
	scripts/record-demo.py "$${CARGO_TARGET_DIR:-target}/debug/kvplane" docs/images

# The pictures of docs/images. Look at them before you commit them.
screenshots: compilers interpreter
	@scripts/browser-env.sh
	$(CARGO) build -p kvplane
	PYTHONPATH=tests/browser:tests/interop .venv-browser/bin/python tests/browser/screenshots.py

wheel: compilers interpreter
	scripts/wheel.sh release dist
	@ls dist

# PORTABLE=1 links against glibc 2.28 with zig; otherwise a program needs a glibc as new as this machine's.
# PROFILE=dev is faster to build, and slower; BINARY=FILE is one that was built already. PREFIX is where it will run, DESTDIR a
# directory in place of the root.
PROFILE ?= release
BINARY ?=
export BINARY
PREFIX ?= /usr/local
DESTDIR ?=
DIST ?= dist
PORTABLE ?= 0

dist deb image: export PORTABLE := $(PORTABLE)
dist: $(if $(BINARY),,compilers)
	scripts/dist.sh "$(PROFILE)" "$(DIST)"

# The same for Debian, and as an OCI image archive that needs no daemon.
deb: $(if $(BINARY),,compilers)
	scripts/deb.sh "$(PROFILE)" "$(DIST)"

image: $(if $(BINARY),,compilers) interpreter
	@mkdir -p "$(DIST)"
	rm -rf "$(DIST)/staged" && scripts/stage.sh "$(PROFILE)" "$(DIST)/staged" /usr
	scripts/oci-image.py "$(DIST)/staged" "$(DIST)/kvplane.oci.tar"
	rm -rf "$(DIST)/staged"

install: $(if $(BINARY),,compilers)
	scripts/stage.sh "$(PROFILE)" "$(DESTDIR)$(PREFIX)" "$(PREFIX)"

uninstall:
	scripts/unstage.sh "$(DESTDIR)$(PREFIX)"

bench: compilers
	scripts/bench.sh

bench-python: compilers interpreter
	scripts/bench-python.sh

# BENCH takes arguments: make bench-picker BENCH=--quick
bench-picker: compilers interpreter
	scripts/bench-picker.sh $(BENCH)

bench-gateway: compilers python-env
	scripts/bench-gateway.sh $(BENCH)

bench-dashboard: compilers interpreter
	@scripts/browser-env.sh
	$(CARGO) build --release -p kvplane
	KVPLANE_BIN="$${CARGO_TARGET_DIR:-target}/release/kvplane" PYTHONPATH=tests/browser:tests/interop .venv-browser/bin/python tests/browser/measure.py

# Simulated faults, one process: requests lost that could be served, answers mixed up, bookings that never end.
soak-gateway: test-compilers python-env
	$(CARGO) test --release -p kvplane-gateway --test it soak -- --ignored --nocapture
	$(CARGO) build -p kvplane
	SOAK_GATEWAY=$${SOAK_GATEWAY:-20000} PYTHONPATH=tests/interop .venv/bin/python -m pytest -s tests/interop/test_gateway_soak.py

# SOAK_SECONDS, SOAK_FAULTS, SOAK_ENGINES and SOAK_SEED are read from the environment: make soak SOAK_SECONDS=600
SOAK_SECONDS ?= 3600
SOAK_FAULTS ?= 1000000
export SOAK_SECONDS SOAK_FAULTS
soak: compilers
	scripts/soak.sh

# In release, for figures; `make interop` runs the same against the build of every day.
attacks: compilers python-env
	$(CARGO) build --release -p kvplane
	KVPLANE_BIN="$${KVPLANE_BIN:-$$(realpath "$${CARGO_TARGET_DIR:-target}")/release/kvplane}" .venv/bin/python -m pytest tests/interop/test_attacks.py $(PYTEST)

heartbeats flap: compilers python-env
	$(CARGO) build --release -p kvplane
	KVPLANE_BIN="$${KVPLANE_BIN:-$${CARGO_TARGET_DIR:-target}/release/kvplane}" PYTHONPATH=tests/interop .venv/bin/python scripts/streams.py $@

bench-scale: compilers
	scripts/bench-scale.sh $(ENGINES)

# TRACE=FILE adds the workload conv8. PEERS takes arguments: make bench-peers PEERS="--quick"
bench-peers:
	$(CARGO) run --release --locked --manifest-path benches/peers/Cargo.toml -- $(if $(TRACE),--trace "$(TRACE)") $(PEERS)

# Hashes of Dynamo's own crate, which tests compare with: needed again when its version in tests/dynamo-vectors changes.
dynamo-vectors:
	$(CARGO) run --quiet --locked --manifest-path tests/dynamo-vectors/Cargo.toml >target/dynamo-vectors.json
	mv target/dynamo-vectors.json tests/dynamo-vectors/vectors.json

clean:
	$(CARGO) clean
	rm -rf benches/peers/target fuzz/target tests/dynamo-vectors/target
	rm -rf .venv .venv-build .venv-python .venv-browser .venv-dynamo .venv-envoy .venv-prompt .venv-router .venv-sdk .tools .pytest_cache dist
	find tests scripts python -name __pycache__ -type d -prune -exec rm -rf {} +

rust-tools:
	@$(CARGO) fmt --version >/dev/null 2>&1 || { echo "rustfmt is missing: rustup component add rustfmt" >&2; exit 1; }
	@$(CARGO) clippy --version >/dev/null 2>&1 || { echo "clippy is missing: rustup component add clippy" >&2; exit 1; }

compilers:
	@scripts/compilers.sh

test-compilers:
	@scripts/compilers.sh tests

interpreter:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Python 3.11 or newer is missing ($(PYTHON)): install it (Debian: apt-get install python3 python3-venv), or name another one: PYTHON=python3.12" >&2; exit 1; }

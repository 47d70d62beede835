# Every target is a few lines that anyone could type. `make setup` installs missing packages and prints their names; the other targets call it.
TARGET   := $(or $(CARGO_TARGET_DIR),target)
TOOLS    := $(or $(LEAFHOST_TOOLS),$(HOME)/.cache/leafhost/tools)
HANDLERS := debug-echo mock-gpu onvif opcua udev
VERSION  := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
PREFIX   ?= /usr/local
DESTDIR  ?=

.NOTPARALLEL:
.PHONY: help setup setup-test setup-lint setup-fuzz setup-cluster setup-dist setup-soak setup-release build programs handlers guests run check test test-all ci test-release image cluster cluster-stop akri-e2e dra-examples bench soak fuzz lint advisories doc install dist programs-arm64 release-dry-run clean

help:
	@echo 'setup     install what building needs (says what; sudo only for that)'
	@echo 'build     $(TARGET)/release/leafhost and leafhost-compile, to try them'
	@echo 'programs  the same in $(TARGET)/dist, as they are released: optimised across crates, which takes several times as long'
	@echo 'handlers  $(TARGET)/handlers/<name>.wasm with <name>.grants.yaml beside it'
	@echo 'run       the agent on this machine with a live table; Ctrl-C ends both'
	@echo 'check     format, clippy and the unit tests of what changed since the branch began, in minutes'
	@echo 'test      all tests that need no root'
	@echo 'test-all  those, and the ones with podman, real hot-plug, real peers and a real Kubernetes'
	@echo 'ci        what every change must pass: check of everything, lint, then the tests from cheap to dear (root)'
	@echo 'test-release  the releases, installed and run (root)'
	@echo 'image     the image of the agent in $(TARGET)/image, for nodes and registries; needs no container engine [ARCH=arm64]'
	@echo 'cluster   a Kubernetes on this machine with the chart installed [NODES=2]; cluster-stop ends it (root)'
	@echo 'fuzz      what reads answers, files, rules and what peers send, each for T seconds [T=60]'
	@echo 'install   on this machine [PREFIX=/usr/local]'
	@echo 'dist      releases for amd64 and arm64 in $(TARGET)/archives'
	@echo 'release-dry-run  all files of a release in $(TARGET)/publish; pushes image and chart to a registry that it starts, and to one that is named [REGISTRY=localhost:5000]'
	@echo 'dra-examples  manifests of another driver'"'"'s examples, with our class, from a folder [DRA_EXAMPLES=DIR] (root)'
	@echo 'akri-e2e  Akri'"'"'s own end-to-end tests on the chart, from a checkout [AKRI_E2E=DIR] (root)'
	@echo 'advisories  known weaknesses of what comes in with dependencies; fetches the list of them'
	@echo 'bench, soak, lint, doc'

setup:
	@deploy/setup.sh build

setup-test:
	@deploy/setup.sh build test

setup-lint:
	@deploy/setup.sh build lint

setup-fuzz:
	@deploy/setup.sh build fuzz

setup-cluster:
	@deploy/setup.sh build cluster

setup-dist:
	@deploy/setup.sh build dist

setup-soak:
	@deploy/setup.sh build test cluster soak

setup-release:
	@deploy/setup.sh build dist release

# Build one package at a time: in one build, cargo would link the compiler into the agent too.
build: setup
	cargo build --release --locked -p leafhost
	cargo build --release --locked -p leafhost-compile

programs: setup
	cargo build --profile dist --locked -p leafhost
	cargo build --profile dist --locked -p leafhost-compile

handlers: setup
	cargo build --locked --profile handler --target wasm32-wasip2 $(HANDLERS:%=-p handler-%)
	@mkdir -p $(TARGET)/handlers
	@for name in $(HANDLERS); do \
	  cp $(TARGET)/wasm32-wasip2/handler/handler_$$(echo $$name | tr - _).wasm $(TARGET)/handlers/$$name.wasm && \
	  cp handlers/$$name/$$name.grants.yaml $(TARGET)/handlers/ || exit 1; done

# Build the components that only tests use.
guests: setup
	cargo build --locked --profile handler --target wasm32-wasip2 -p sandbox-guest -p bench-twenty
	@mkdir -p $(TARGET)/guests
	@cp $(TARGET)/wasm32-wasip2/handler/sandbox_guest.wasm $(TARGET)/guests/sandbox.wasm
	@cp $(TARGET)/wasm32-wasip2/handler/bench_twenty.wasm $(TARGET)/guests/twenty.wasm

run: build handlers
	@deploy/run.sh $(TARGET)

check: setup
	@tests/run.sh check

# Cheap steps come first.
SUITES := doc crates contract standalone sandbox kubelet crashes
DEAR   := system peers cluster

test: setup
	@tests/run.sh tidy unit $(SUITES)

test-all: setup-cluster setup-test
	@tests/run.sh tidy unit $(SUITES) $(DEAR)

ci: setup-lint setup-test
	@tests/run.sh check-all lint $(SUITES) setup-cluster $(DEAR)

# Build the programs that tests run with the features of the tests: otherwise cargo compiles most dependencies twice.
TESTED := cargo build --locked --workspace --bins --tests

# Unpack and run each release and image; those for arm64 in an emulator.
test-release: dist
	@$(MAKE) --no-print-directory image ARCH=amd64
	@$(MAKE) --no-print-directory image ARCH=arm64
	$(TESTED)
	cargo test --locked --workspace --test system -- --ignored release

# The chart uses this name.
IMAGE := docker.io/library/leafhost:$(VERSION)
HOST  := $(if $(filter aarch64 arm64,$(shell uname -m)),arm64,amd64)
ARCH  := $(HOST)

image: $(if $(filter $(HOST),$(ARCH)),programs,programs-$(ARCH)) handlers
	@deploy/image.sh $(TARGET)/$(if $(filter $(HOST),$(ARCH)),,$(ARM64)/)dist $(TARGET)/handlers $(ARCH) $(IMAGE) $(TARGET)/image/leafhost-$(VERSION)-linux-$(ARCH).tar

cluster: setup-cluster build handlers
	@deploy/image.sh $(TARGET)/release $(TARGET)/handlers $(HOST) $(IMAGE) $(TARGET)/image/cluster.tar
	@cargo build --locked --quiet -p leafhost-tests --bin leafhost-cluster
	@$(TARGET)/debug/leafhost-cluster start --nodes $(or $(NODES),1) --image $(TARGET)/image/cluster.tar --chart deploy/chart

cluster-stop: setup-cluster
	@cargo build --locked --quiet -p leafhost-tests --bin leafhost-cluster
	@$(TARGET)/debug/leafhost-cluster stop

# Install the Python packages that Akri's tests need.
akri-e2e: setup-cluster setup-test handlers guests
	@[ -n "$(AKRI_E2E)" ] || { echo 'name the folder with the tests, test/e2e of a checkout of Akri: make akri-e2e AKRI_E2E=DIR' >&2; exit 2; }
	@[ -x $(TARGET)/akri-e2e/bin/pytest ] || { python3 -m venv --clear $(TARGET)/akri-e2e && \
	  $(TARGET)/akri-e2e/bin/pip --quiet install 'pytest<8' 'kubernetes<27' 'pyyaml<7' 'faker<19' setuptools; }
	$(TESTED)
	AKRI_E2E=$(abspath $(AKRI_E2E)) AKRI_E2E_PYTHON=$(abspath $(TARGET))/akri-e2e/bin/python \
	  cargo test --locked --workspace --test cluster -- --ignored --nocapture akri_e2e

dra-examples: setup-cluster setup-test handlers guests
	@[ -n "$(DRA_EXAMPLES)" ] || { echo 'name a folder with manifests, such as those of demo/examples of a checkout of dra-example-driver: make dra-examples DRA_EXAMPLES=DIR' >&2; exit 2; }
	$(TESTED)
	DRA_EXAMPLES=$(abspath $(DRA_EXAMPLES)) cargo test --locked --workspace --test cluster -- --ignored --nocapture manifests_of_other_drivers

# Build the benches with the profile of the programs that they measure.
BENCH := cargo bench --profile dist --locked

bench: setup-cluster programs handlers guests
	RUST_LIB_BACKTRACE=0 $(BENCH) -p leafhost-compile --bench call
	$(BENCH) -p leafhost-agent --bench plan
	$(BENCH) -p leafhost-controller --bench brokers
	$(BENCH) -p leafhost-scheduler --bench filter
	$(BENCH) -p leafhost-tests --bench agent
	$(BENCH) -p leafhost-tests --bench kubelet
	$(BENCH) -p leafhost-tests --bench cluster
	cargo build --profile dist --locked -p leafhost-peers --features peers
	$(BENCH) -p leafhost-tests --bench network

soak: setup-soak programs handlers guests
	$(TESTED)
	cargo test --locked --workspace --test standalone --test crashes --test kubelet --test cluster --test differential -- --ignored soak --nocapture
	CALLS=100000 $(BENCH) -p leafhost-tests --bench agent -- memory

# New inputs are kept in $(TARGET)/fuzz, failing inputs in fuzz/artifacts. Each target has the limits of an input.
FUZZED := answer cache_seal configuration device_usage devices grants opcua_reader soap_reader udev_rule wsd_reader

fuzz: setup-fuzz
	@set -e; export PATH="$(TOOLS)/bin:$$PATH"; for target in $(FUZZED); do \
	  seeds=fuzz/corpus/$$target; [ -d $$seeds ] || seeds=handlers/onvif/fixtures; \
	  words=fuzz/dictionaries/$$target.dict; [ -f $$words ] && words=-dict=$$words || words=; \
	  mkdir -p $(TARGET)/fuzz/corpus/$$target; \
	  cargo fuzz run --fuzz-dir fuzz --sanitizer none --target-dir $(TARGET)/fuzz $$target $(TARGET)/fuzz/corpus/$$target $$seeds -- \
	    $$words -max_total_time=$(or $(T),60) -max_len=262144 -rss_limit_mb=512 -timeout=20; done

lint: setup-lint
	cargo fmt --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-targets --features leafhost-wasm/fuzzing -- -D warnings
	cargo clippy --locked -p leafhost-peers --all-features --all-targets -- -D warnings
	cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)
	cargo clippy --locked --target wasm32-wasip2 $(HANDLERS:%=-p handler-%) -- -D warnings
	cargo package --locked --allow-dirty --quiet -p leafhost-sdk-macros -p leafhost-sdk
	PATH="$(TOOLS)/bin:$$PATH" cargo deny --log-level error check bans licenses sources

# This is not part of lint, which needs no network.
advisories: setup-lint
	PATH="$(TOOLS)/bin:$$PATH" cargo deny --locked --log-level error check advisories

doc: setup
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps

# Install from a source tree in the same way as from a release.
install: programs handlers
	@deploy/stage.sh $(TARGET)/dist $(TARGET)/dist/leafhost $(TARGET)/handlers $(TARGET)/stage/install
	@$(MAKE) --no-print-directory -C $(TARGET)/stage/install install PREFIX=$(PREFIX) DESTDIR=$(abspath $(DESTDIR))

# Builds for other architectures use Debian's cross compiler and libudev.
ARM64 := aarch64-unknown-linux-gnu
CROSS := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
	PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig

programs-arm64: setup-dist
	$(CROSS) cargo build --profile dist --locked --target $(ARM64) -p leafhost
	$(CROSS) cargo build --profile dist --locked --target $(ARM64) -p leafhost-compile

dist: programs programs-arm64 handlers
	@mkdir -p $(TARGET)/archives && rm -f $(TARGET)/archives/*
	@for arch in amd64 arm64; do \
	  case $$arch in amd64) programs=$(TARGET)/dist ;; arm64) programs=$(TARGET)/$(ARM64)/dist ;; esac; \
	  name=leafhost-$(VERSION)-linux-$$arch; \
	  deploy/stage.sh $$programs $(TARGET)/dist/leafhost $(TARGET)/handlers $(TARGET)/stage/$$name && \
	  tar -C $(TARGET)/stage --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -czf $(TARGET)/archives/$$name.tar.gz $$name && \
	  (cd $(TARGET)/archives && sha256sum $$name.tar.gz >>SHA256SUMS) || exit 1; done
	@ls -sh $(TARGET)/archives

# RELEASE.md describes each file.
release-dry-run:
	@deploy/release.sh check
	@$(MAKE) --no-print-directory setup-release dist
	@$(MAKE) --no-print-directory image ARCH=amd64
	@$(MAKE) --no-print-directory image ARCH=arm64
	@PATH="$(TOOLS)/bin:$$PATH" HANDLERS="$(HANDLERS)" deploy/release.sh files $(TARGET) $(TARGET)/publish
	@deploy/release.sh try $(TARGET)/publish
	@[ -z "$(REGISTRY)" ] || deploy/release.sh push $(TARGET)/publish $(REGISTRY)

clean:
	cargo clean

# `make help` lists what there is. Needed beforehand: Rust stable and Go (or API server binaries: see README).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
DEMO ?= 1.37
export KEEP

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: assets
assets: ## Build the real API servers into the cache (a second time takes no time)
	@tests/controlplane/build.sh > /dev/null

.PHONY: demo
demo: export SCPOL_TOOLS = no
demo: ## A current cluster with the operator, a policy and its sidecar, from a bare clone; DEMO=1.13 for the Initializer, DEMO=node for a real node
	@if [ ! -x tests/demo/$(DEMO).sh ]; then echo "error: there is no DEMO=$(DEMO); use DEMO=1.37, DEMO=1.13 or DEMO=node" >&2; exit 2; fi
ifeq ($(DEMO),node)
	@NODE_REQUIRED=1 tests/node/run.sh -- tests/demo/node.sh
else
	@nodes=$$(tests/demo/build.sh $(DEMO)); \
	exec $${CARGO_TARGET_DIR:-target}/debug/controlplane run --version $(DEMO) --nodes $$nodes -- tests/demo/$(DEMO).sh
endif

# With --workspace everywhere: with fewer packages dependencies have fewer features, and are compiled once more.
# Stable Rust tells the seconds of each test only to whoever asks like this.
SECONDS_OF_TESTS := --config 'target."cfg(all())".runner = ["env", "RUSTC_BOOTSTRAP=1"]'

.PHONY: test
test: assets test-offline ## All tests, real servers included, and a real node where the machine can
	@tests/servers-and-node.sh

.PHONY: test-offline
test-offline: ## What needs no server: one to two minutes
	@cargo test --locked --workspace --no-run
	@mkdir -p target/seconds
	@cargo $(SECONDS_OF_TESTS) test --locked --workspace --lib --bins --test build --test corpus --test offline --test rules --test smoke \
		-- -Z unstable-options --report-time | tee target/seconds/offline.log
	@cargo test --locked --workspace --doc

.PHONY: test-servers
test-servers: assets ## What needs real servers; TESTS=author for some of it
	@cargo $(SECONDS_OF_TESTS) test --locked --workspace --test servers -- -Z unstable-options --report-time
	@cargo test --locked --workspace --test apiserver -- $(TESTS)

.PHONY: node
node: ## All checks on a real node (kubelet, containerd, runc); needs root and Debian packages; CHECKS="samples drained" for some
	@tests/node/run.sh $(or $(CHECKS),long)

.PHONY: node-short
node-short: ## Those checks on a real node that are part of `make test`
	@tests/node/run.sh short

.PHONY: matrix
matrix: ## The conformance checks on every version of Kubernetes, some 3 minutes each; VERSIONS="1.28 1.33" for some; writes the tables of versions
	@tests/matrix.sh $(VERSIONS)

.PHONY: slowest
slowest: ## The 30 slowest tests and starts of servers of the last run
	@tests/slowest.sh

.PHONY: chaos
chaos: assets ## What may go wrong between the operator and API servers, with three seeds; CASES=F07 for some, SCPOL_CHAOS_SEED=n for one seed
	@SCPOL_CHAOS_ALL=1 cargo test --locked --workspace --test apiserver -- $(or $(CASES),chaos::)

.PHONY: laws
laws: ## The laws of injection on a million generated cases and more, and the sentences about rollouts in a million states; PROPTEST_CASES, MODEL_STATES
	@PROPTEST_CASES=$${PROPTEST_CASES:-120000} cargo test --locked --workspace --test offline -- laws:: refit::
	@MODEL_STATES=$${MODEL_STATES:-1000000} MODEL_BOUND=2 cargo test --locked --package model -- --nocapture

.PHONY: fuzz
fuzz: ## Fuzzing, guided by coverage: FUZZ_SECONDS=60 or FUZZ_RUNS=10000000 for each of FUZZ_TARGETS
	@tests/fuzz/run.sh

.PHONY: mutants
mutants: ## Whether a change of the code that decides or injects is noticed by a test; ARGS="--shard 0/20" for some of them
	@tests/mutants/run.sh $(ARGS)

.PHONY: bench
bench: ## Throughput, latency and memory against the floor, as ratios; PARTS="webhook force" for some of it
	@tests/controlplane/build.sh 1.13 1.37 > /dev/null
	@cargo bench --locked --bench bench -- $(PARTS)

.PHONY: soak
soak: assets ## Memory under an hour's load and ten minutes' rest, then ten times install, use, uninstall; SOAK_MINUTES, SOAK_REST_MINUTES
	@cargo bench --locked --bench bench -- soak
	@SCPOL_TEST_TIMING=documented SCPOL_UNINSTALLS=10 cargo test --locked --test apiserver -- uninstall::of_a_server_that_was_fresh

.PHONY: lint
lint: ## Formatting, lints and dependencies; warnings of rustc, clippy and rustdoc are errors
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --quiet
	@tests/deny.sh

.PHONY: crds
crds: ## Write the CRDs, docs/codes.md, docs/fields.md and the generated tables of pages anew
	@UPDATE=1 cargo test --locked --test offline -- crd parameter_pages
	@$(MAKE) --no-print-directory install-files

.PHONY: install-files
install-files: ## Write the one-file install bundles and the generated files of the Helm chart anew
	@kubectl kustomize config/default > config/install.yaml
	@kubectl kustomize config/older > config/install-older.yaml
	@kubectl kustomize config/legacy > config/install-legacy.yaml
	@UPDATE=1 cargo test --locked --test offline author_check
	@kubectl kustomize config/author > config/author-check.yaml
	@kubectl kustomize config/author-record > config/author-record.yaml
	@UPDATE=1 cargo test --locked --workspace --test offline dashboard
	@charts/files.sh
	@UPDATE=1 cargo test --locked --workspace --test offline chart

.PHONY: pictures
pictures: ## Write the pictures of `scpol explain` and of the dashboard in docs/images anew
	@UPDATE=1 cargo test --locked --workspace --test offline pictures

.PHONY: dashboard-picture
dashboard-picture: assets ## Use a real cluster for four minutes, and write the picture of the dashboard from what Prometheus then answers
	@cargo build --locked --workspace --bin scpol --bin controlplane
	@mkdir -p target/pictures
	@$${CARGO_TARGET_DIR:-target}/debug/controlplane run --version 1.37 --nodes 3 -- tests/pictures/record.sh target/pictures
	@RECORDED=$(CURDIR)/target/pictures UPDATE=1 cargo test --locked --workspace --test offline pictures

.PHONY: docs
docs: ## Build the site of the docs into target/book, and check its links
	@release/book.sh

IMAGE ?= sidecar-policy:0.1.0
.PHONY: image
image: ## Build the container image with docker, podman or buildah; IMAGE names it
	@binary=$$(release/binary.sh) && release/image.sh $(IMAGE) "$$binary"

.PHONY: dist
dist: assets ## Build what a release has, into target/dist; IMAGE names the image, RELEASE_URL where its files will be
	@release/dist.sh

# The product is plain Go: `go build ./cmd/kg` works as well. What this file
# adds is the lab's set-up, so that one command is enough on a fresh machine.

SHELL := /bin/bash
GO    ?= go
# The CNI that the demo's nodes run: flannel or cilium; empty is kilolab's
# default. CILIUM_MODE is tunnel or native.
CNI         ?=
CILIUM_MODE ?=

# One step after the other, even under make -j: they share two cores and a cache.
.NOTPARALLEL:
.DEFAULT_GOAL := help

.PHONY: help
help: ## these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
# kilolab builds the real programs that its CNI needs, and says so.
demo: build ## start the lab (as root), wait for the mesh, show it and every pod pinging every other
	@testbed/setup.sh $(CNI)
	@bin/kilolab demo $(if $(CNI),--cni=$(CNI)) $(if $(CILIUM_MODE),--cilium-mode=$(CILIUM_MODE))

.PHONY: demo-down
demo-down: build ## end the lab and leave nothing behind
	@bin/kilolab down

.PHONY: build
build: ## compile kg, kgctl and kilolab into bin/
	@CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/... ./testbed/kilolab

.PHONY: test
# A run that asks for skipping what this machine lacks is not stopped by it.
test: $(if $(KILO_LAB_SKIP),,setup tools) build ## every test, the lab's scenarios included (as root)
	$(GO) vet ./...
	$(GO) test -timeout 10m $$($(GO) list ./... | grep -v /testbed)
	cd manifests/tool && $(GO) test -count=1 -timeout 10m ./...
# One lab at a time, with its log as it goes: a scenario takes minutes.
	$(GO) test -timeout $(if $(KILO_TEST_ALL),120m,50m) -count=1 -p 1 -v ./testbed/...

.PHONY: test-all
test-all: export KILO_TEST_ALL = 1
test-all: test ## make test, and the scenarios that its time leaves out (KILO_TEST_ALL=1 for one of them)

.PHONY: test-unit
test-unit: ## the tests that take seconds: no lab; without root those in a namespace of their own are skipped
	@[ "$$(id -u)" -eq 0 ] || export KILO_TEST_SKIP_ROOT="make test-unit was run without root"; \
	$(GO) test -timeout 10m $$($(GO) list ./... | grep -v -e /testbed/scenario -e /testbed/lab -e /testbed/guest)

.PHONY: test-kernel
test-kernel: setup tools ## what needs the kernel's own WireGuard, in a QEMU guest; 3 minutes, part of make test
	$(GO) test -timeout 20m -count=1 -v ./testbed/guest

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, and who may import what
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt: please format"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	cd testbed/tools/modules/flannel && $(GO) vet ./...
	cd manifests/tool && $(GO) vet ./...
	@staticcheck=$$($(GO) run ./testbed/tools/ensure -paths lint | sed -n 's/^staticcheck //p') && \
	[ -n "$$staticcheck" ] && echo staticcheck ./... && "$$staticcheck" ./...
# The planner's own tests hold the rule of its imports and the build for darwin.
	$(GO) test -count=1 ./core/plan

.PHONY: manifests
manifests: ## make manifests/*.yaml from the chart in manifests/helm/kilo
	cd manifests/tool && $(GO) run .

.PHONY: bench
bench: setup tools ## measure what docs/performance.md reports (as root, 20 minutes, on a machine that does nothing else)
	@$(GO) run ./testbed/bench

.PHONY: setup
setup: ## install the Debian packages that are missing
	@testbed/setup.sh cilium

.PHONY: tools
tools: ## build the lab's real programs (Kubernetes, etcd, Flannel, Cilium …), half an hour the first time
	@$(GO) run ./testbed/tools/ensure

.PHONY: clean
clean: ## remove what was built here; the lab's programs stay in their cache (KILO_LAB_CACHE, ~/.cache/kilo-lab)
	rm -rf bin dist

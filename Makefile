# The product is plain Go: `go build ./cmd/kg` works as well. What this file
# adds is the lab's set-up, so that one command is enough on a fresh machine.

SHELL := /bin/bash
GO    ?= go
# The CNI that the demo's nodes run: flannel or cilium; empty is kilolab's
# default. CILIUM_MODE is tunnel or native.
CNI         ?=
CILIUM_MODE ?=

# The release, and the toolchain of builder images: each is written down once.
VERSION    := $(shell sed -n 's/^appVersion: *//p' manifests/helm/kilo/Chart.yaml)
GO_VERSION := $(shell sed -n 's/^go //p' go.mod)
IMAGE      ?= ghcr.io/kilo-overlay/kilo
# Of kg's image, and of what make image builds: this machine's.
ARCHES     := amd64 arm64 arm s390x ppc64le riscv64
ARCH       ?= $(shell $(GO) env GOARCH)
DOCKER     ?= docker
BUILDAH    ?= buildah --storage-driver vfs
# Where people run kgctl beside Linux.
DESKTOPS   := darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
# Writes the bill of materials of a Go binary.
SBOM       := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
LDFLAGS    := -s -w -X main.release=$(VERSION) -X main.stamped=$(VERSION)
# The same sources make the same bytes, wherever they lie.
RELEASE_BUILD := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

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
	$(GO) test -timeout $(if $(KILO_TEST_ALL),180m,70m) -count=1 -p 1 -v ./testbed/...

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

.PHONY: binaries
binaries: ## compile kg as the image holds it, for ARCH, into dist/image
	@mkdir -p dist/image/linux_$(ARCH)/usr/bin
	GOOS=linux GOARCH=$(ARCH) $(RELEASE_BUILD) -o dist/image/linux_$(ARCH)/usr/bin/kg ./cmd/kg
	@ln -sf kg dist/image/linux_$(ARCH)/usr/bin/wg

.PHONY: image
image: binaries ## the image of ARCH, made of ready binaries by docker or buildah, whichever works here
	@if $(DOCKER) info >/dev/null 2>&1; then build='$(DOCKER) build'; \
	elif command -v buildah >/dev/null; then build='$(BUILDAH) build --format docker'; \
	else echo "make image: neither a docker that answers nor buildah is here: apt-get install buildah" >&2; exit 1; fi; \
	echo "$$build"; $$build --platform linux/$(ARCH) --target ready --build-arg TARGETARCH=$(ARCH) \
		--label org.opencontainers.image.version=$(VERSION) \
		--label org.opencontainers.image.revision=$$(git rev-parse HEAD 2>/dev/null) \
		-t $(IMAGE):$(VERSION) .

.PHONY: release
release: ## everything of a release, for all platforms, with checksums and bills of materials, into dist/release
	@rm -rf dist/release && mkdir -p dist/release
	@set -e; for arch in $(ARCHES); do \
		echo "linux/$$arch"; \
		GOOS=linux GOARCH=$$arch $(RELEASE_BUILD) -o dist/release/kg-linux-$$arch ./cmd/kg; \
		GOOS=linux GOARCH=$$arch $(RELEASE_BUILD) -o dist/release/kgctl-linux-$$arch ./cmd/kgctl; \
	done; \
	for platform in $(DESKTOPS); do \
		echo "$$platform"; os=$${platform%/*} arch=$${platform#*/}; \
		GOOS=$$os GOARCH=$$arch $(RELEASE_BUILD) -o dist/release/kgctl-$$os-$$arch$$([ $$os != windows ] || echo .exe) ./cmd/kgctl; \
	done
	cp manifests/*.yaml dist/release/
	tar -C manifests/helm --sort=name --owner=0 --group=0 --mtime=@0 -chzf dist/release/kilo-$(VERSION).tgz kilo
	@set -e; for name in kg kgctl; do \
		$(GO) run $(SBOM) bin -json -version v$(VERSION) -output dist/release/$$name.cdx.json dist/release/$$name-linux-amd64; \
	done
	cd dist/release && sha256sum -- * >SHA256SUMS
	@ls -l dist/release

.PHONY: bench
bench: setup tools ## measure what docs/performance.md reports (as root, on a machine that does nothing else)
	@$(GO) run ./testbed/bench

.PHONY: setup
setup: ## install the Debian packages that are missing
	@testbed/setup.sh cilium image

.PHONY: tools
tools: ## build the lab's real programs (Kubernetes, etcd, Flannel, Cilium …), half an hour the first time
	@$(GO) run ./testbed/tools/ensure

.PHONY: clean
clean: ## remove what was built here; the lab's programs stay in their cache (KILO_LAB_CACHE, ~/.cache/kilo-lab)
	rm -rf bin dist

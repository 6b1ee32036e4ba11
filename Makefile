# Needs Go, make and, for all but build, root on a Debian machine: the real parts
# (Gitea, registry, buildkitd, runc) run in namespaces of their own.

GO       ?= go
VERSION  ?= $(shell git describe --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 10s
# Which cases make bench runs, as a regular expression for their names.
CASES    ?= .

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build all programs into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/...
	$(GO) build -trimpath -o bin/ ./bench

.PHONY: install
install: build ## Install Debian packages, build the tools and make the base images, once
	bin/bench install

.PHONY: images
images: build ## Build the steps' images as OCI layouts in bin/images, and print their digests
	bin/bench images -o bin/images

.PHONY: try
try: install ## Show it all: git push, build, digest written back, image running
	bin/bench try

.PHONY: test
test: verify install ## Run every check and test against the real parts
	$(GO) test -race -count 1 -timeout 40m ./...

.PHONY: verify
verify: ## Check formatting, vet, the module file and the generated manifests
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'run gofmt -w on these files'; exit 1; }
	$(GO) vet ./...
	$(GO) mod tidy -diff
	$(GO) test ./manifests/render

.PHONY: golden
golden: install ## Write the golden files anew; look at the diff
	$(GO) test $$(grep -rl --include=*_test.go "flag.Bool(.update" . | xargs -n1 dirname | sort -u) -update

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	@set -e; for package in $$($(GO) list ./steps/... ./manifests/... ./workflows/... ./cmd/...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep ^Fuzz || true); do \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

.PHONY: demo
demo: build ## Bring up the cluster, install the factory, push, and watch the push become a pod
	bin/bench demo

.PHONY: bench
bench: build ## Prove every case of the chain on the cluster, in about an hour; results in bin/gates.json
	bin/bench gates --only '$(CASES)' --json bin/gates.json

.PHONY: bench-up
bench-up: build ## Bring up the cluster; the first time this compiles for most of an hour
	bin/bench up

.PHONY: bench-check
bench-check: build ## Prove that the cluster is what it claims to be
	bin/bench check

.PHONY: bench-status
bench-status: build ## Show the nodes, their services and the pods
	bin/bench status

.PHONY: bench-down
bench-down: build ## Take the cluster down and count what is left
	bin/bench down

.PHONY: bench-soak
bench-soak: build ## Up, check, down ten times; kill up ten times
	bin/bench soak

.PHONY: bench-steps
bench-steps: install ## Measure the steps against git, buildctl and curl
	bin/bench bench-steps

.PHONY: clean
clean: ## Remove bin/ (the tools' cache stays: see FABRIQUE_BENCH_CACHE in README)
	rm -rf bin

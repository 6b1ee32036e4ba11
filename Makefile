# All targets need root, Go and Debian; make install-bench brings the rest.
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install-bench: ## Install packages, build the tools, make the base images; minutes the first time, then nothing
	go run ./bench install

test: install-bench ## Run all tests, against the real parts
	go vet ./...
	go test ./...

.PHONY: help install-bench test

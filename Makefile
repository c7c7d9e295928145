# Targets for people and for .ci/run; `make` alone lists them. Every target makes what it needs.

PYTHON ?= $(shell command -v python3.11 || echo python3)
DOCKER ?= docker
IMAGE  ?= endpoint-picker
# Tests wait for 30 % of their time: three processes keep two cores busy (323 s beside other work, 394 s with two).
JOBS   ?= 4
TARGET ?= connection parsers stream growth cost

VENV      := .venv
BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.installed
GATEWAY   := $(VENV)/.installed-gateway
DOCS      := $(VENV)/.installed-docs
COMPILED_TREE := build/compiled/.built
RELEASE_ENV := $(VENV)/release
RELEASE   := $(RELEASE_ENV)/.installed
PRODUCT    = $(shell find epp plugins/epp_plugins -name '*.py')
PROTOS     = $(sort $(shell find proto -name '*.proto'))

# The tests start processes by the hundred: without cached bytecode, each would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

# With COMPILED=1 what runs is not this folder's epp but the compiled one. Python would look into the current folder first.
ifeq ($(COMPILED),1)
export EPP_COMPILED := 1
export PYTHONPATH := $(CURDIR)/build/compiled
export PYTHONSAFEPATH := 1
RUN_TREE := $(COMPILED_TREE)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help up wheel test test-system test-kube test-release test-image lint format proto docs kustomize dashboards envoy bench bench-compare fuzz soak faults flow release image lock licences clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "ARGS=... is passed to the command of up, test, test-system, test-kube, bench, fuzz, soak, faults and flow," \
		"for example: make test ARGS='-k picker -x'"

up: $(GATEWAY) ## Run a whole gateway here: fake fleet, endpoint picker, Envoy
	@$(if $(FRESH),,echo "» reusing $(VENV): installed already, and unchanged since")
	@$(BIN)/epp up --objects deploy/objects $(ARGS)

wheel: $(INSTALLED) ## Build the wheel into dist/ (COMPILED=1: compiled in part, for this Python and platform)
	@began=$$(date +%s) && \
	PYTHONPATH= $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist . && \
	wheel=$$(ls -t dist/*.whl | head -n 1) && \
	echo "» $$wheel: $$(stat -c %s "$$wheel") bytes, built in $$(($$(date +%s) - began)) s"

test: $(INSTALLED) $(RUN_TREE) ## Run the tests, JOBS=4 files at a time (JOBS=0: one after the other, in this process; COMPILED=1: of the compiled wheel)
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-system: $(INSTALLED) ## Run the tests with programs of Debian packages: other HTTP/2 clients, Prometheus, Redis, systemd-analyze, Chromium
	@for program in h2load nghttp curl promtool redis-server systemd-analyze chromium; do command -v $$program >/dev/null || { \
		echo "make test-system: $$program is missing: apt-get install nghttp2-client curl prometheus redis-server systemd chromium fonts-dejavu-core" >&2; exit 1; }; done
	$(BIN)/pytest tests/system $(ARGS)

test-kube: $(INSTALLED) ## Run the tests with a real kube-apiserver (KUBEBUILDER_ASSETS), helm and kustomize (CHART_TOOLS), docker-compose (COMPOSE_TOOLS), or build them with Go, once, in minutes
	@$(BIN)/python -m tools.kube
	$(BIN)/pytest tests/kube $(ARGS)

test-release: $(INSTALLED) $(RELEASE) ## Build a release twice and install it in empty environments, one for each Python here
	$(BIN)/pytest tests/release $(ARGS)

test-image: $(INSTALLED) ## Build the image with buildah and run it, as root, without a container engine, in minutes
	@$(BIN)/python -m tools.image
	$(BIN)/pytest tests/image $(ARGS)

lint: $(INSTALLED) ## Check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

proto: $(INSTALLED) ## Compile proto/ into epp/pb
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=epp/pb --pyi_out=epp/pb $(PROTOS)

docs: $(DOCS) ## Generate docs/plugins, docs/cli.md and tables of docs/helm.md, and the web site of all pages in build/site
	$(BIN)/epp plugins docs docs/plugins --package epp_plugins
	$(BIN)/python -m tools.chart docs
	$(BIN)/python -m tools.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "» build/site/index.html is the first page"

kustomize: $(INSTALLED) ## Render deploy/kustomize from the Helm chart, with helm from CHART_TOOLS or built with Go
	$(BIN)/python -m tools.chart kustomize

dashboards: $(INSTALLED) ## Write the Grafana dashboards, deploy/grafana, their copies in the Helm chart, and the tables of docs/dashboards.md
	$(BIN)/python -m tools.dashboards
	$(BIN)/python -m tools.chart docs

envoy: $(INSTALLED) ## Write the Envoy configurations, deploy/envoy
	$(BIN)/epp envoy-config --write-all deploy/envoy

bench: $(INSTALLED) $(RUN_TREE) ## Run the benchmarks (COMPILED=1: of the compiled wheel)
	$(BIN)/python -m tools.bench $(ARGS)

bench-compare: $(INSTALLED) ## Compare the results of two commits, cell by cell: BEFORE=abc123 AFTER=def456 (abc123:compiled: of that build), or files below build/bench
	$(BIN)/python -m tools.bench.compare $(BEFORE) $(AFTER) $(ARGS)

fuzz: $(INSTALLED) $(RUN_TREE) ## Fuzz for 10 minutes each (Linux on x86_64): TARGET=connection, parsers, stream, growth, cost (COMPILED=1: the compiled wheel)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.txt
	@for target in $(TARGET); do \
		$(BIN)/python -m tools.fuzz $$target -max_total_time=600 $(ARGS) || exit 1; done

soak: $(INSTALLED) ## Send millions of requests, then check for leaks (ARGS=--epp: the whole picker)
	$(BIN)/python -m tools.soak $(ARGS)

faults: $(INSTALLED) ## Misbehaving clients and model servers, restarts, attacks (ARGS="--only NAME --requests N --seconds N")
	$(BIN)/python -m tools.faults $(ARGS)

flow: $(INSTALLED) ## Measure fairness, priority and cost of flow control through Envoy, a minute each (ARGS="--only NAME --seconds N")
	$(BIN)/python -m tools.flow $(ARGS)

release: $(RELEASE) ## Build wheel, sdist, bill of materials and sums into dist/ (VERSION=1.2.3: as a new version)
	@$(RELEASE_ENV)/bin/python -m tools.release build $(VERSION)

image: ## Build the container image, with the compiled wheel (COMPILED=0: with the pure one)
	@$(DOCKER) version >/dev/null 2>&1 || { echo "make image: '$(DOCKER)' is missing or its engine does not answer;" \
		"start it, or name another one: make image DOCKER=podman" >&2; exit 1; }
	$(DOCKER) build -t $(IMAGE) \
		--build-arg COMPILED="$(or $(COMPILED),1)" \
		--build-arg VERSION="$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" \
		--build-arg COMMIT="$$(git describe --always --abbrev=40 --dirty --match=)" \
		--build-arg SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)" \
		--build-arg CREATED="$$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)" \
		.

lock: ## Write requirements/*.txt, with hashes, after pyproject.toml changed (ARGS=--upgrade: newest versions)
	@$(check_python)
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	$(PYTHON) -m venv "$$scratch" && \
	"$$scratch/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1' && \
	PATH="$$scratch/bin:$$PATH" python -m tools.release lock $(ARGS)

licences: $(INSTALLED) ## Write docs/licences.md; fails on a licence that is unknown or not allowed
	$(BIN)/python -m tools.release licences

clean: ## Remove build results and caches; .venv stays
	rm -rf build dist bench-results fuzz-results .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find epp plugins tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

define check_python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
{ echo "make: Python 3.11 or newer is needed, '$(PYTHON)' is not: make PYTHON=/path/to/python3.11" >&2; exit 1; }
endef

# Installs what requirements/$(1).txt locks, prints a line for each download, and then the package itself from this folder.
# Where pip fails, so does the recipe; the reason is on standard error. Not awk: Debian's holds its input back until pip
# has ended.
define install
@$(check_python)
@test -x $(BIN)/python || { echo "» creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
@echo "» installing into $(VENV), once: $(2)"
@{ PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
	--require-hashes -r requirements/$(1).txt || echo "install failed"; } | while read -r what file size; do \
	case "$$what $$file" in \
		"install failed") exit 1 ;; \
		Downloading*.whl) echo "  $$what $${file%%-[0-9]*} $$size" ;; \
		"Using cached") echo "  Using cached $${size%%-[0-9]*}" ;; \
		"Installing collected") echo "  Unpacking" ;; \
	esac; done
@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endef

# A stamp holds the time of the last install; a change of either file makes the next target install again.
$(INSTALLED): pyproject.toml requirements/dev.txt
	$(call install,dev,everything for tests and checks too; a minute or two)
	@touch $@ $(GATEWAY)

# The tests do without mkdocs.
$(DOCS): pyproject.toml requirements/docs.txt
	$(call install,docs,what the commands and the web site of the documentation need; half a minute)
	@touch $@

# What `make wheel COMPILED=1` has in it.
$(COMPILED_TREE): $(INSTALLED) $(PRODUCT) pyproject.toml hatch_build.py
	@echo "» compiling into build/compiled: three minutes of CPU"
	@rm -rf build/compiled
	@EPP_COMPILED=1 PYTHONPATH= $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--target build/compiled .
	@touch $@

# Less than a third of it, for a first look.
$(GATEWAY): pyproject.toml requirements/gateway.txt
	$(eval FRESH := yes)
	$(call install,gateway,what the endpoint picker needs and a real Envoy; about half a minute)
	@touch $@

# The tools of a release, in an environment of their own: nothing else needs them.
$(RELEASE): requirements/release.txt
	@$(check_python)
	@echo "» installing into $(RELEASE_ENV), once: build, twine and cyclonedx-bom"
	@$(PYTHON) -m venv $(RELEASE_ENV)
	@$(RELEASE_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

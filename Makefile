# Every target makes its own environment in .venv first, so that two commands are enough: make demo, make test.

VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SPARK  := $(VENV)/spark.jsa

# The first interpreter on the PATH that is new enough; set PYTHON= to choose another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$python; break; }; done)

# What is wrong with the interpreter, if anything: of the environment, and of the one that makes it.
LIVES = "$(BIN)/python" -c '' 2>/dev/null || \
	{ echo "error: $(BIN)/python does not run; say make clean, then everything is made again" >&2; exit 1; }
FITS = test -n "$(PYTHON)" || \
	{ echo "error: no Python 3.11 or newer on the PATH; install one or say make PYTHON=/path/to/python" >&2; exit 1; }; \
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "error: $(PYTHON) is older than 3.11 or does not run; say make PYTHON=/path/to/python" >&2; exit 1; }; \
	"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo "error: $(PYTHON) lacks venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# Who names an interpreter gets no other one, which an earlier run has put into the environment.
WHICH = -c 'import os, sys; print(sys.version, os.path.realpath(sys.base_prefix))'
ifneq ($(filter command environment,$(firstword $(origin PYTHON))),)
SAME = test "$$("$(PYTHON)" $(WHICH) 2>&1)" = "$$("$(BIN)/python" $(WHICH))" || \
	{ echo "error: $(VENV) was made with another Python than $(PYTHON); say make clean first, or VENV=other" >&2; exit 1; }
else
SAME = true
endif

# Python keeps what it has compiled, also where the environment forbids it: tests and demo start hundreds of processes,
# and each would compile everything again.
export PYTHONDONTWRITEBYTECODE =

# make demo ORDERS=155848 SEED=7 LOSE=3
ORDERS ?=
SEED   ?=
LOSE   ?=
# make sim SEEDS=1000 SLAVES=all (or none), or SEED=17 to replay one
SEEDS  ?= 100
# make fuzz MINUTES=60, CASE=broker:17 to replay one, FLAWS=1 to find what is planted; make chaos MINUTES=30 SEED=17 BROKER=apache DATABASES=2 RECONCILE=30, SLAVES=1 with a slave of our broker
MINUTES ?= 1
# make walk COUNT=5: so many messages, the shortest walk of them is printed
COUNT   ?=
FLAWS   ?=
# make mutants COUNT=1000 SEED=3 PART=wire, or MUTANT=wire/frame.py:45:12 to try one again
PART    ?=
MUTANT  ?=
RECONCILE ?=
BROKER  ?=
DATABASES ?=
# The linter of workflows; it is no package of Python.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
# Four processes for two cores, as many tests wait; tests/work_order.py tells what each gets. One
# that died ends the run: pytest-xdist may wait for ever for what replaces it.
PYTEST ?= -n 4 --dist loadscope --max-worker-restart=0

# The steps of a target keep their order, also with -j: the interpreter is named first.
.NOTPARALLEL:

.DEFAULT_GOAL := help
.PHONY: help interpreter archive ready demo test interop wheel sbom pins deployment sizes check format bench sim fuzz crash chaos mutants walk figures docs clean frameworks sdks consolebrowser

help: ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: interpreter ready ## real orders through faults; ORDERS=2000 SEED=… LOSE=0 (three minutes)
	@$(BIN)/reliable-mq demo $(ORDERS:%=--orders %) $(SEED:%=--seed %) $(LOSE:%=--lose %)

# What the processes of pytest import is compiled before, once: each of them would, if they came at the same time.
test: interpreter archive check ## all checks and tests but the long ones of interop (about fifteen minutes on two cores); PYTEST="-k wire"
	@$(BIN)/python -m compileall -q -j 2 -x '/test_[^/]*$$' src tests bench examples
	$(BIN)/pytest -m "not interop and not packaging and not long and not browser" $(PYTEST)

interop: ready ## Apache's clients and mqadmin at both brokers, our client over clusters of every kind, object stores
	$(BIN)/pytest tests/interop tests/conformance tests/broker_core/test_against_apache.py tests/reconcile/test_object_store.py \
	tests/reconcile/test_real_store.py

sdks: ready ## the stories of official 5.x clients at three endpoints, and their page in docs/evidence (half an hour)
	$(BIN)/pytest -n 0 tests/interop/test_official_clients.py --junitxml=build/sdks.xml
	@$(BIN)/python -m tests.interop.sdk_page build/sdks.xml

frameworks: ready ## the integrations with all servers, and with the two newest minor versions of each framework (half an hour)
	$(BIN)/pytest -m packaging tests/contrib tests/tutorial tests/cli

wheel: ready ## build the wheel, install it into a new environment, and reconcile with it there
	$(BIN)/pytest tests/packaging

consolebrowser: ready ## every page of the console in Chromium, with axe-core; screenshots in build/console (apt-get install chromium)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "playwright>=1.49" "axe-playwright-python>=0.1.4"
	$(BIN)/pytest -n 0 -m browser tests/console/browser

sbom: ready ## build the wheel with its software bill of materials: build/sbom
	@$(BIN)/python -m tests.packaging.sbom

pins: ready ## write the newest allowed version of every package into .github/constraints.txt
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links --output-file .github/constraints.txt pyproject.toml

deployment: ready ## check the files of deploy/ and .github/ with their own linters; actionlint where there is Go
	@if command -v go >/dev/null && ! test -e $(BIN)/actionlint; then GOBIN=$(abspath $(BIN)) go install $(ACTIONLINT); fi
	$(BIN)/pytest -n 0 tests/deployment

sizes: ready ## measure what each extra costs on the disk, and write docs/evidence/install_sizes.md (some minutes)
	@$(BIN)/python -m bench.install_sizes

# Spark starts in half of the processor time with it: tests/spark_archive.py. It is made once for an environment, beside
# the checks, for which one core is enough.
archive: ready
	@test $(SPARK) -nt $(READY) || { $(BIN)/python -m tests.spark_archive >/dev/null 2>&1 & }

# The first line of `make demo` and `make test`: which Python runs them.
interpreter:
	@if test -e $(READY); then $(LIVES); $(SAME); else $(FITS); fi
	@python="$(PYTHON)"; if test -e $(READY); then python=$(BIN)/python; fi; \
	"$$python" -c 'import platform, sys; \
	print("Python", platform.python_version(), "of", sys.base_prefix, "on", platform.platform(), flush=True)'

# An environment that can be used: its interpreter may have been removed since.
ready: $(READY)
	@$(LIVES); $(SAME)

# Two processes of mypy: what it keeps of an earlier run is not there in a new clone.
check: ready ## formatting, lint, types and the sentences of the pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/python -m tests.documentation.prose

format: ready ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: ready ## orders and sends per second, kills survived, growth, rivals (more than an hour)
	@$(BIN)/python -m bench

sim: ready ## a broker through simulated faults; SEEDS=1000, SLAVES=all or none, or SEED=17 to replay one
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(SLAVES:%=--slaves %)

fuzz: ready ## odd and huge requests at real servers, odd records and store files; MINUTES=60, SECURED=1, CASE=broker:17 or FLAWS=1
	@$(BIN)/python -m tests.fuzz $(if $(FLAWS),--flaws,$(if $(CASE),--case "$(CASE)",$(if $(SECURED),--secured) --minutes $(MINUTES)))

crash: ready ## kill a process at each of its steps in every mode, and write docs/evidence/crash_matrix.md (two hours)
	@$(BIN)/python -m tests.crash_matrix --page docs/evidence/crash_matrix.md
	$(BIN)/pytest -m long tests/reconcile tests/replication $(PYTEST)
	RELIABLE_MQ_EVERY_STEP=1 $(BIN)/pytest -k "step or dies or ends_its_transaction or repairs_of_everything" $(PYTEST)

chaos: ready ## kill and stop everything at random under load, then count; MINUTES=120 SEED=17 BROKER=apache DATABASES=2 SLAVES=1
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(SEED:%=--seed %) $(RECONCILE:%=--reconcile %) \
	$(BROKER:%=--broker %) $(DATABASES:%=--databases %) $(SLAVES:%=--slaves %)

mutants: ready ## make small wrong changes, and count which the tests notice; COUNT=1000 SEED=… PART=wire, MUTANT=wire/frame.py:45:12
	@$(BIN)/python -m tests.house.mutants $(COUNT:%=--count %) $(SEED:%=--seed %) $(PART:%=--part %) $(MUTANT:%=--mutant %)

walk: ready ## print the path of one message through all stations; COUNT=1 counts its calls, functions, files and changes of package
	@$(if $(COUNT),$(BIN)/python -m tests.house.walk_count $(COUNT),$(BIN)/reliable-mq walk)

figures: ready ## count lines, files, circles of imports, names that stand twice, words a sentence
	@$(BIN)/python -m tests.house.figures

docs: ready ## build the documentation as a site: build/site/index.html
	@$(BIN)/python -m tests.documentation.build

clean: ## remove the environment and everything that was made
	rm -rf $(VENV) .venv-rivals demo-output build dist spark-warehouse .mypy_cache .pytest_cache .ruff_cache .hypothesis .mutants

$(READY): pyproject.toml
	@if test -e $(READY) && "$(BIN)/python" -c '' 2>/dev/null; then $(SAME); \
	else $(FITS); "$(PYTHON)" -m venv --clear $(VENV); fi
	@echo "Installing everything into $(VENV): once, some hundred megabytes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@touch $(READY)

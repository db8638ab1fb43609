# frazil's commands. They need Python 3.11, make and Java 17, and install the rest into .venv and a cache.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
CYCLONEDX_VERSION := 7.5.0
INSTALLED := $(VENV)/.installed
# Processes that run tests: two more than cores, because tests wait for servers half of their time. If one of these
# processes dies, the run ends and names its test: pytest-xdist may wait for a replacement forever.
WORKERS ?= 4
PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0
# Tests write in memory if it has 8 GiB for them: a disk takes longer to delete their many small files than to write them.
IN_MEMORY := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 >= 8388608 {print "PYTEST_DEBUG_TEMPROOT=/dev/shm"}')
STATIC := $(wildcard include demo spark_apps dags deploy plugins tests bench)

# The cache may be on another device than the checkout, so hard links may fail.
export UV_LINK_MODE ?= copy
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# Otherwise each process that tests start would compile the package again, and pytest the tests.
unexport PYTHONDONTWRITEBYTECODE
# The venv's commands (spark-submit, airflow) come before any of the system's.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help venv setup jars loops demo test lint unit bench soak matrix mutants lock wheel site clean check-python check-java

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Real flights from Kafka into Iceberg, run by Airflow (DEMO=exit, CATALOG=rest|postgres, SPARK=cluster|kubernetes, …)
	@exec $(BIN)/python -m demo $(if $(filter exit,$(DEMO)),--exit) \
	  $(if $(CATALOG),--catalog $(CATALOG)) $(if $(SPARK),--spark $(SPARK)) \
	  $(if $(KAFKA_PORT),--kafka-port $(KAFKA_PORT)) $(if $(AIRFLOW_PORT),--airflow-port $(AIRFLOW_PORT))

# Lint runs next to the tests, which wait for servers much of the time.
test: setup ## Lint, types, import contract and all tests, with real parts
	@$(BIN)/python -m frazil.spark.jars fetch s3 postgres registry >/dev/null
	@log=$$(mktemp); $(MAKE) --no-print-directory lint >$$log 2>&1 & lint=$$!; \
	$(IN_MEMORY) $(BIN)/pytest $(PARALLEL) -p tests.run_again --durations=10 $(PYTEST); tests=$$?; \
	wait $$lint; linted=$$?; cat $$log; rm -f $$log; exit $$((tests ? tests : linted))

lint: venv ## Lint, format, types and import contract
	$(BIN)/ruff check $(STATIC)
	$(BIN)/ruff format --check $(STATIC) $(wildcard docs *.md)
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: WORKERS = 2
unit: venv loops ## The fast tests, which start no server
	FRAZIL_TEST_EXAMPLES=unit $(IN_MEMORY) $(BIN)/pytest $(PARALLEL) \
	  -m 'not soak and not processes and not slow' tests/unit $(PYTEST)

bench: setup ## Benchmarks, one after another (BENCH=name for one of them); see bench/README.md
	@set -e; for name in $(or $(BENCH),$(filter-out peers growth substrates upserts upsert_reads,$(basename $(notdir $(wildcard bench/*.py))))); do \
	  echo "== $$name"; $(BIN)/python -m "bench.$$name"; done

soak: setup ## Slow tests, property tests with many random examples, and mutants
	FRAZIL_TEST_EXAMPLES=soak $(BIN)/pytest -m 'soak or rotates or hypothesis' -rP $(PYTEST)
	$(MAKE) mutants

matrix: setup ## Unit tests and a whole stream with other sets of versions (MATRIX=a for one); see tests/matrix.py
	FRAZIL_TEST_EXAMPLES=unit $(IN_MEMORY) $(BIN)/python -m tests.matrix $(MATRIX)

mutants: setup ## A sample of changed decisions that no unit test notices (ROOM=commit, COUNT=40, SEED=2026)
	@left=0; for room in $(or $(ROOM),commit merge audit stream signals status); do \
	  $(BIN)/python -m tests.mutant_hunt $$room --count $(or $(COUNT),40) --seed $(or $(SEED),2026) || left=1; done; exit $$left

setup: check-java venv ## All that demo and tests need: .venv, the JVM jars, compiled loops
	@$(MAKE) --no-print-directory -j2 jars loops

venv: $(INSTALLED) ## Only .venv

$(INSTALLED): requirements.txt pyproject.toml | check-python
	@[ -x $(BIN)/uv ] || echo "setup: making $(VENV) (seconds)"
	@[ -x $(BIN)/uv ] || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv==$(UV_VERSION); }
	@echo "setup: installing $$(grep -c == requirements.txt) packages and compiling their bytecode (minutes, 2 GB)"
	$(BIN)/uv pip install --quiet --compile-bytecode --no-deps --requirements requirements.txt
	$(BIN)/uv pip install --quiet --no-deps --editable .
	@rm -rf include/frazil.egg-info  # with this second copy of the metadata, Airflow would find the plugin twice
	@touch $@

jars: venv check-java
	@echo "setup: fetching the JVM jars that are missing (105 MB the first time)"
	@$(BIN)/python -m frazil.spark.jars fetch >/dev/null
	@echo "setup: archiving the JVM's classes if they changed (half a minute)"
	@$(BIN)/python -m frazil.spark.class_archive
	@$(BIN)/python -m frazil.dev.kafka

loops: venv
	@echo "setup: compiling the loops over records if they changed (half a minute)"
	@$(BIN)/python -m frazil.ingest.precompile

lock: venv ## Pin the requirements of pyproject.toml (UPGRADE=1 for the newest versions that fit)
	$(BIN)/uv pip compile --quiet $(if $(UPGRADE),--upgrade) --python-version 3.11 --all-extras --group checkout \
	  --custom-compile-command "make lock" --output-file requirements.txt pyproject.toml

wheel: venv ## The package as a wheel and an sdist, with their SBOM (CycloneDX) and SHA-256, in dist/ (SIGN=… an SSH key)
	@rm -rf build dist
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python
	$(BIN)/uv pip compile --quiet --no-header --all-extras --constraints requirements.txt --python-version 3.11 pyproject.toml \
	  | PYTHONWARNINGS=ignore $(BIN)/uv tool run --quiet --from cyclonedx-bom==$(CYCLONEDX_VERSION) cyclonedx-py requirements - \
	    --pyproject pyproject.toml --output-reproducible --output-file dist/frazil.cdx.json
	@rm -rf build include/frazil.egg-info; cd dist && sha256sum frazil* | tee SHA256SUMS
	$(if $(SIGN),ssh-keygen -q -Y sign -f "$(abspath $(SIGN))" -n frazil dist/SHA256SUMS)

site: venv ## The documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean: ## End the embedded servers; remove .venv, .frazil and caches
	@[ ! -x $(BIN)/frazil ] || $(BIN)/frazil dev down
	rm -rf build dist site $(VENV) .frazil .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache include/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 with its venv module is missing as '$(PYTHON)': install it (Debian, Ubuntu: apt-get install" \
	    "python3.11-venv), or name another with make PYTHON=/path/to/python3.11." >&2; exit 1; }

check-java:
	@[ -n "$$JAVA_HOME" ] || command -v java >/dev/null || { \
	  echo "Java 17 is missing: neither JAVA_HOME nor PATH has it. Install a JDK 17 (Debian, Ubuntu: apt-get install" \
	    "openjdk-17-jre-headless; macOS: brew install openjdk@17)." >&2; exit 1; }

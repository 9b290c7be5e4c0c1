# make train: set up and train the quickstart; repeat it to resume.
# make test:  set up and run the whole test suite.
PYTHON := .venv/bin/python
RUN_DIR ?= runs/quickstart
GIN_FILE ?= configs/runs/quickstart.gin
ARGS ?=
TESTS ?= tests

.PHONY: help train test check aot reference format lock

help:
	@echo "make train [RUN_DIR=runs/quickstart] [GIN_FILE=...] [ARGS='--gin.TrainConfig.steps=800']"
	@echo "           set up .venv and train; repeat it to resume"
	@echo "make test  [TESTS=tests/models]   set up .venv and run tests"
	@echo "make check                        lint, format check, types"
	@echo "make aot                          compilers for chips that are not there (H100, TPUs)"
	@echo "make reference                    torch and transformers for tests of models/huggingface"
	@echo "make format                       rewrite to the format"
	@echo "make lock                         rewrite the locked requirements"

train:
	@.ci/setup requirements.lock
	@$(PYTHON) -m trainer.main --gin_file=$(GIN_FILE) --run_dir=$(RUN_DIR) $(ARGS)

test:
	@.ci/setup requirements-dev.lock
	@.ci/setup requirements-aot.lock aot
	@.ci/setup requirements-reference.lock reference
	@$(PYTHON) -m pytest -n 2 $(TESTS)

check:
	@.ci/setup requirements-dev.lock
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

aot:
	@.ci/setup requirements.lock
	@.ci/setup requirements-aot.lock aot

reference:
	@.ci/setup requirements-dev.lock
	@.ci/setup requirements-reference.lock reference

format:
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

lock:
	.venv/bin/uv pip compile pyproject.toml --generate-hashes --universal --python-version 3.12 \
	  --no-header -q --upgrade -o requirements.lock
	.venv/bin/uv pip compile pyproject.toml --extra dev -c requirements.lock --generate-hashes \
	  --universal --python-version 3.12 --no-header -q --upgrade -o requirements-dev.lock
	.venv/bin/uv pip compile --group aot --generate-hashes --universal --python-version 3.12 \
	  --no-header -q --upgrade -o requirements-aot.lock
	.venv/bin/uv pip compile --group reference -c requirements-dev.lock --generate-hashes \
	  --python-platform x86_64-manylinux_2_28 --python-version 3.12 --no-header -q --upgrade \
	  --no-emit-package triton -o requirements-reference.lock

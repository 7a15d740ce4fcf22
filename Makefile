# `make` lists the targets. Everything is set up in .venv and build/; nothing outside is touched,
# except that `make test` installs GoogleTest through apt when it is missing and that is allowed.

PYTHON    ?= python3
# The first torch for Python 3.15 is 2.15.
TORCH     ?= torch==$(shell $(PYTHON) -c 'import sys; print("2.15.0" if sys.version_info >= (3, 15) else "2.13.0")')
AERO_CUDA ?= AUTO
SEEDS     ?= 1
MINUTES   ?= 30
MESSAGES  ?= 10000
EMULATED_GPU ?= ON
PYTHONS   ?= $(shell for n in 10 11 12 13 14 15; do python3.$$n -c 'import sys; print(sys.executable)' 2>/dev/null || true; done)
CUDA_RESULTS ?= build/cuda-results
SHELL     := /bin/bash
.SHELLFLAGS := -eo pipefail -c
VENV      := .venv
BIN       := $(VENV)/bin
# SPU has wheels for these two; see `spu` in pyproject.toml.
PRIVATE_PYTHON ?= $(firstword $(shell command -v python3.11 python3.10) $(PYTHON))
PRIVATE   := .venv-private
# A network of `make demo` where there is one, else one that is trained for a minute.
PRIVATE_RUN := $(firstword $(patsubst %/model/config.json,%,$(wildcard runs/demo/sm-scfuffn-s4-seed*/model/config.json)) \
               runs/private/network/sm-scfuffn-seed0)
NATIVE    := CMakeLists.txt pyproject.toml packaging/build_backend.py \
             $(shell find kernels csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cmake')
CPP_TESTS := $(shell find tests/cpp -name '*.cpp' -o -name '*.h')
# Python compiles what it imports, at its first import: torch and transformers have far more. Where the
# environment forbids it to keep that, every process would compile all again, for seven seconds.
unexport PYTHONDONTWRITEBYTECODE
# The pip that Python 3.11 brings takes twice to three times as long as pip 26.
PIP       := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
# `make demo SEEDS=3` renews the committed spread over seeds, which the report of one seed quotes.
PROCESSOR := $(shell sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1 | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9\n' '_')
RESULTS   ?= benchmarks/results/demo_$(PROCESSOR)_$(shell date +%Y%m)
SPREAD    := $(lastword $(sort $(wildcard benchmarks/results/demo_*.json)))
BENCHMARKS := $(patsubst %,benchmarks/%.py,attention_entropy cost_simulator entropy_regularization key_parts scaled_ffn temperature_softmax torch_attention training_step)
# Where the installed native code is compiled, and the C++ tests beside it.
NATIVE_BUILD := build/native
CMAKE_TESTS := cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
               -DAERO_TESTS=ON -DAERO_WERROR=ON -DAERO_PYTHON=OFF -DAERO_TORCH_OPS=OFF -DAERO_CUDA=OFF
ARM       := -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/tests/cpp/aarch64_linux.cmake
# Softmax-only networks gain most from the last tokens (S4) with one head, GPT-2's kind with four. One
# gains from another learning rate than the recipe's: benchmarks/results/convolution_mini_*.md.
DEMO_FOUR_HEADS := SM+LN+G SM+LN+G+S4
DEMO_AT_8E_3    := SM+FN+R+S4
DEMO_ONE_HEAD   := SM+ScFuFFN+S4 "EReg(SM(t)+ScFuFFN+S4)"
DEMO_SEEDS       = $(foreach seed,$(shell seq $(SEEDS)),--seed $(seed))

# An editable install knows the Python files by name, so it is renewed when the list of them changes,
# and with AERO_CUDA.
INSTALLED := AERO_CUDA=$(AERO_CUDA) $(sort $(shell find python/aero -name '*.py'))
$(shell mkdir -p build && echo '$(INSTALLED)' | cmp -s - build/installed || echo '$(INSTALLED)' > build/installed)

.PHONY: help demo reproduce private private-test private-bench test ctest every-float wheels cuda-wheel arm-wheel mac-wheel kernel arm-test slurm-test sanitizers mutants fuzz fuzz-private fuzz-sanitized fuzz-kernels build lint bench test-cuda bench-cuda house notebooks docs clean
.DEFAULT_GOAL := help
# ninja shares out its own work, and fails where `make --jobs` tells it of jobs that it cannot reach.
unexport MAKEFLAGS
# Installing keeps one core busy, so the C++ tests compile and run meanwhile.
ifneq ($(filter test,$(MAKECMDGOALS)),)
MAKEFLAGS += --jobs=2
endif

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 23

demo: AERO_CUDA := OFF # its networks train on the CPU
# Where a wheel of dist, or of AERO_WHEELS, was built from these native sources, nothing is compiled.
demo: FROM_WHEELS := $(or $(AERO_WHEELS),dist)
demo: $(VENV)/.built ## train five small networks, compare them in runs/demo/report.html (8 minutes)
	$(BIN)/aero train --recipe demo --data stdlib --output runs/demo $(DEMO_SEEDS) $(addprefix --label ,$(DEMO_FOUR_HEADS))
	$(BIN)/aero train --recipe demo --data stdlib --output runs/demo $(DEMO_SEEDS) $(addprefix --label ,$(DEMO_AT_8E_3)) \
	  --set optimizer.learning_rate=8e-3
	$(BIN)/aero train --recipe demo --data stdlib --output runs/demo $(DEMO_SEEDS) $(addprefix --label ,$(DEMO_ONE_HEAD)) \
	  --set model.num_heads=1
	$(BIN)/aero report runs/demo $(if $(filter 1,$(SEEDS)),$(addprefix --seed-spread ,$(SPREAD)),--results $(RESULTS))

# TARGET="front front_long" trains several; `.venv/bin/python -m benchmarks.paper --help` says what else it takes.
TARGET ?= list
reproduce: $(VENV)/.built ## retrain a table or figure of the paper and judge its claims: TARGET=table2 SCALE=mini
	$(BIN)/python -m benchmarks.paper $(TARGET) $(addprefix --scale ,$(SCALE))

private: $(VENV)/.built $(PRIVATE)/.installed ## run a small trained network between two parties
	test -e $(PRIVATE_RUN)/model/config.json || $(BIN)/aero train --recipe demo --data stdlib \
	  --label SM+ScFuFFN --set training.tokens=614400 --output runs/private/network
	$(BIN)/aero export $(PRIVATE_RUN) --output runs/private/export
	$(BIN)/aero private run runs/private/export --tokenizer $(PRIVATE_RUN)/model \
	  --prompt "def read(self" --tokens 2

private-test: $(VENV)/.tests $(PRIVATE)/.installed ## run the tests that need SPU, and send servers 3 x MESSAGES=10000 malformed messages
	$(BIN)/python -m pytest tests/python/private -m private --numprocesses 2 --dist loadfile
	AERO_FUZZ_MESSAGES=$(MESSAGES) $(BIN)/python -m pytest tests/python/private/parties -k 'garbage or keeps_nothing' --numprocesses 2

# The later cells need root, for network namespaces. At the paper's length: TOKENS=128 LINKS="tcp lan-1gbps".
PRIVATE_EFFECT := $(basename $(lastword $(sort $(wildcard benchmarks/results/private_effect_*.json))))
TOKENS ?= 32
LINKS  ?= tcp lan-1gbps wan-400mbps wan-100mbps
private-bench: ## time private networks on an idle machine, after make demo and private (20 minutes)
	$(BIN)/python benchmarks/private/measure_networks.py runs/demo/sm-ln-g-seed1 runs/demo/sm-scfuffn-s4-seed1 --tokens $(TOKENS) \
	  $(addprefix --link ,$(LINKS)) --max-load 5 --output $(PRIVATE_EFFECT).json --results $(PRIVATE_EFFECT).md
	$(BIN)/python benchmarks/private/measure_networks.py runs/demo/sm-fn-r-s4-seed1 runs/demo/ereg-sm-t-scfuffn-s4-seed1 runs/demo/sm-ln-g-s4-seed1 \
	  --tokens $(TOKENS) --link tcp --max-load 5 --output $(PRIVATE_EFFECT).json --results $(PRIVATE_EFFECT).md

test: $(VENV)/.tests ctest ## run the C++ and the Python tests
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Apart, so that they run while the other core installs packages.
ctest: $(NATIVE_BUILD)/.tests
	ctest --test-dir $(NATIVE_BUILD) --output-on-failure --parallel 2

# The Python of .venv is tried with its torch, the others without. TORCHES="2.11.0 2.15.0" tries more
# with every Python: each is gigabytes of CUDA.
wheels: $(VENV)/.wheels ## build the source archive and a wheel per Python in dist, and try them
	$(BIN)/python packaging/build_wheels.py $(PYTHONS)
	$(BIN)/python packaging/try_wheels.py $(PYTHONS)
	$(BIN)/python packaging/try_wheels.py --torch $(patsubst torch==%,%,$(TORCH))
	$(if $(TORCHES),$(BIN)/python packaging/try_wheels.py $(addprefix --torch ,$(TORCHES)) $(PYTHONS))

# Its kernels need no GPU to be compiled; what is tried runs on the CPU.
cuda-wheel: $(VENV)/.wheels ## build a wheel with the CUDA kernels per Python in dist/cuda, and try them
	$(BIN)/python packaging/build_wheels.py --cuda $(PYTHONS)
	$(BIN)/python packaging/try_wheels.py --cuda --torch $(patsubst torch==%,%,$(TORCH))

# The index has torch for ARM with CUDA alone.
arm-wheel: $(VENV)/.wheels ## build a wheel for 64-bit ARM and try it under QEMU; 5 GB; apt, as root
	$(NEEDS_ARM)
	$(BIN)/python packaging/arm_wheel.py --torch $(patsubst torch==%,%,$(TORCH))

# Nothing of it can run here.
mac-wheel: $(VENV)/.wheels ## compile and link the wheel for macOS on 64-bit ARM with zig (300 MB)
	$(BIN)/python packaging/mac_wheel.py --torch $(patsubst torch==%,%,$(TORCH))

# VARIANT=cuda or aarch64 adds a variant, with what cuda-wheel or arm-wheel needs.
kernel: $(VENV)/.built ## build the operators as a kernel of Hugging Face's Hub in dist/kernel
	$(if $(filter aarch64,$(VARIANT)),$(NEEDS_ARM))
	$(BIN)/python packaging/build_kernel.py $(VARIANT) --torch $(patsubst torch==%,%,$(TORCH))

# Speed there says nothing. GoogleTest is compiled too, from Debian's sources of it.
arm-test: build/arm/.built ## run the C++ tests as 64-bit ARM under QEMU; apt installs it, as root
	ctest --test-dir build/arm --output-on-failure --parallel 2

# Not part of `make test`, which skips these: where systemd runs, the packages start daemons at boot.
slurm-test: $(VENV)/.tests ## run cells as jobs of Slurm on loopback; apt installs it, as root
	command -v munged slurmctld slurmd sbatch >/dev/null || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge)
	$(BIN)/python -m pytest benchmarks/paper/tests/test_slurm.py

sanitizers: build/sanitized/.built build/threads/.built ## run the C++ tests under sanitizers of addresses, undefined behaviour, threads
	ctest --test-dir build/sanitized --output-on-failure --parallel 2
	build/threads/aero_kernel_tests --gtest_brief=1 --gtest_filter='*AtOnce*'

every-float: $(NATIVE_BUILD)/.tests ## compute 2^x of every negative float on every instruction set; print the worst error (minutes)
	$(NATIVE_BUILD)/aero_cpp_tests --gtest_also_run_disabled_tests --gtest_filter='*EveryNegativeFloat*'

# ROOM is a folder of aero, or edits for the list of edits of C++ sources; both without it. SAMPLE=60
# SEED=1 draws 60 places of each folder. It goes on where it ended: tests/mutants/README.md.
mutants: $(VENV)/.mutants ## change the sources in small ways; list what no test catches (hours)
	$(BIN)/python -m tests.mutants.run $(addprefix --room ,$(ROOM)) $(addprefix --sample ,$(SAMPLE)) $(addprefix --seed ,$(SEED))

# All go on where they ended. `tests/fuzz/run.py --replay ATTACK:SEED` repeats a failure.
fuzz: $(VENV)/.tests ## attack operators, files, command lines and trainings for MINUTES=30
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES)

fuzz-private: $(VENV)/.tests ## attack the messages of private parties for MINUTES=30
	PYTHONPATH=tests/python/private $(BIN)/python tests/fuzz/run.py --attack private_messages --minutes $(MINUTES)

# Without site, so that the package is the sanitized one and not the editable one.
fuzz-sanitized: build/fuzz/sanitized/.built ## attack the operators under two sanitizers for MINUTES=30
	PYTHONPATH="$(CURDIR)/build/fuzz/sanitized:$$($(BIN)/python -c 'import sys; print(*filter(None, sys.path), sep=":")')" \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
	$(BIN)/python -S tests/fuzz/run.py --attack sanitized_operators --attack sanitized_variants --minutes $(MINUTES)

# libFuzzer is clang's. The corpus that it starts from and renews is that of the C++ tests.
fuzz-kernels: $(VENV)/.tools ## let libFuzzer look for cases of attention that reach new code, for MINUTES=30; apt installs clang, as root
	$(NEEDS_GTEST)
	command -v clang++-14 >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends clang-14 libclang-rt-14-dev)
	$(CMAKE_TESTS) -B build/fuzz/kernels -DAERO_SANITIZE=fuzzer -DAERO_CUDA=OFF -DAERO_WERROR=OFF -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14
	cmake --build build/fuzz/kernels --target attention_fuzzer
	$(BIN)/python tests/fuzz/kernels/fuzz.py build/fuzz/kernels --minutes $(MINUTES)

build: $(VENV)/.built ## build and install into .venv (editable)

lint: $(VENV)/.lint $(VENV)/.built ## formatters, linters and type checker; changes nothing
	$(BIN)/pre-commit run --all-files

bench: $(VENV)/.built ## time operators and simulator against named opponents
	for file in $(BENCHMARKS); do $(BIN)/python $$file --quick || exit 1; done

# Both build offline with the torch that $(PYTHON) has, in build/offline, and go on where they ended.
test-cuda: ## prove the operators on this machine's GPU; needs no network and no .venv (8 minutes)
	$(PYTHON) tests/cuda/run.py --results $(CUDA_RESULTS)/tests.json

bench-cuda: ## time the operators on this machine's GPU against their opponents (8 minutes)
	$(PYTHON) benchmarks/cuda/run.py --results $(CUDA_RESULTS)/benchmark.json

# What counts as a public name, tests/python/house.py says; at most 100, and no circle, as test_layering.py holds.
house: $(VENV)/.built ## count Python files and lines, public names, README lines, import circles, beside their aims
	$(BIN)/python -m tests.python.house

notebooks: $(VENV)/.tests ## execute the notebooks, renew their outputs and the gallery (15 minutes)
	$(BIN)/python notebooks/execute.py

# Strict: a broken link, anchor or reference is an error. Nothing is loaded from elsewhere, so that
# build/docs/index.html works offline. A release is kept with `.venv/bin/mike deploy VERSION`.
docs: $(VENV)/.docs ## build the manual in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

clean: ## remove the environment and everything built; runs/ stays
	rm -rf $(VENV) $(PRIVATE) build dist

define NEEDS_GTEST
@test -e /usr/include/gtest/gtest.h || (apt-get update -qq && apt-get install -y -qq libgtest-dev) || \
  (echo "the C++ tests need GoogleTest: install the system package libgtest-dev" && exit 1)
endef

define NEEDS_ARM
command -v aarch64-linux-gnu-g++ qemu-aarch64-static >/dev/null || \
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user-static)
endef

# --- how the environment comes about ---------------------------------------------------------------

$(VENV)/.tools:
	@echo "==> creating $(VENV) with $(TORCH) and the build tools"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=26"
	$(BIN)/python -c "import torch" 2>/dev/null || $(PIP) "$(TORCH)" numpy
	$(PIP) "scikit-build-core>=1.0,<2" "pybind11>=3.0,<4" "ninja>=1.12,<2"
	@touch $@

$(VENV)/.native: $(VENV)/.tools $(NATIVE) build/installed
	@mkdir -p build
	@wheel="$(if $(FROM_WHEELS),$$($(BIN)/python packaging/fitting_wheel.py $(FROM_WHEELS) build/from_wheel/libraries))"; \
	if [ -n "$$wheel" ]; then echo "==> taking the native code of $$wheel"; from=(build-dir=build/from_wheel/objects \
	  cmake.define.AERO_PREBUILT=$(CURDIR)/build/from_wheel/libraries); \
	else echo "==> building the native code"; from=(build-dir=$(NATIVE_BUILD)); fi; \
	PATH="$(CURDIR)/$(BIN):$$PATH" NINJA_STATUS='compiling: %f of %t, %W left: ' \
	  $(PIP) --verbose --no-build-isolation --no-deps --editable . "$${from[@]/#/--config-settings=}" \
	  --config-settings=cmake.define.AERO_CUDA=$(AERO_CUDA) --config-settings=cmake.define.AERO_WERROR=ON 2>&1 | tee build/native.log | \
	  { grep --line-buffered -oE 'compiling: .*' || true; } || (tail -n 40 build/native.log; exit 1)
	@touch $@

$(VENV)/.built: $(VENV)/.native
	@echo "==> installing the dependencies"
	$(PIP) aero-torch[all]
	@touch $@

$(VENV)/.tests: $(VENV)/.native
	@echo "==> installing what the tests need"
	$(PIP) aero-torch[test]
	@touch $(VENV)/.built $@

$(VENV)/.wheels: $(VENV)/.built
	$(PIP) aero-torch[wheels]
	@touch $@

$(VENV)/.mutants: $(VENV)/.tests
	$(NEEDS_GTEST)
	$(PIP) aero-torch[mutants]
	@touch $@

$(VENV)/.docs: $(VENV)/.built
	$(PIP) aero-torch[docs]
	@touch $@

$(VENV)/.lint: $(VENV)/.built
	$(PIP) aero-torch[lint]
	@touch $@

$(PRIVATE)/.installed: pyproject.toml
	@echo "==> creating $(PRIVATE) with SPU and JAX"
	@$(PRIVATE_PYTHON) -c 'import sys; sys.exit((3, 10) > sys.version_info[:2] or sys.version_info[:2] > (3, 11))' || \
	  (echo "spu needs Python 3.10 or 3.11: make private PRIVATE_PYTHON=/path/to/python3.11" && exit 1)
	test -x $(PRIVATE)/bin/python || $(PRIVATE_PYTHON) -m venv $(PRIVATE)
	$(PRIVATE)/bin/python -m pip install --disable-pip-version-check "pip>=26"
	$(PRIVATE)/bin/python -c "from pip._vendor import tomli; \
	  print(*tomli.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['spu'], sep='\n')" > $(PRIVATE)/packages.txt
	$(PRIVATE)/bin/python -m pip install --disable-pip-version-check --requirement $(PRIVATE)/packages.txt
	@touch $@

# After `make demo` has taken the code of a wheel, nothing is compiled there yet.
$(NATIVE_BUILD)/.tests: $(VENV)/.native $(CPP_TESTS)
	$(NEEDS_GTEST)
	@test -e $(NATIVE_BUILD)/CMakeCache.txt || { rm $(VENV)/.native; $(MAKE) $(VENV)/.native; }
	cmake $(NATIVE_BUILD) -DAERO_TESTS=ON
	cmake --build $(NATIVE_BUILD) --target aero_cpp_tests
	@touch $@

build/sanitized/.built: $(VENV)/.tools $(NATIVE) $(CPP_TESTS)
	$(NEEDS_GTEST)
	$(CMAKE_TESTS) -B build/sanitized -DAERO_SANITIZE=ON -DAERO_EMULATED_GPU=$(EMULATED_GPU)
	cmake --build build/sanitized --target aero_cpp_tests
	@touch $@

build/arm/.built: $(VENV)/.tools $(NATIVE) $(CPP_TESTS) tests/cpp/aarch64_linux.cmake
	command -v aarch64-linux-gnu-g++ qemu-aarch64-static >/dev/null && test -e /usr/src/googletest || \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user-static googletest)
	cmake -S /usr/src/googletest -B build/arm/googletest -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja $(ARM) \
	  -DCMAKE_INSTALL_PREFIX=$(CURDIR)/build/arm/installed -DBUILD_GMOCK=OFF
	cmake --build build/arm/googletest --target install
	$(CMAKE_TESTS) -B build/arm $(ARM) -DCMAKE_BUILD_TYPE=Release -DGTest_DIR=$(CURDIR)/build/arm/installed/lib/cmake/GTest
	cmake --build build/arm --target aero_cpp_tests
	@touch $@

build/threads/.built: $(VENV)/.tools $(NATIVE) $(CPP_TESTS)
	$(NEEDS_GTEST)
	$(CMAKE_TESTS) -B build/threads -DAERO_SANITIZE=thread
	cmake --build build/threads --target aero_kernel_tests
	@touch $@

build/fuzz/sanitized/.built: $(VENV)/.tests $(NATIVE) build/installed
	cmake -S . -B build/fuzz/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DAERO_SANITIZE=ON -DAERO_WERROR=ON -DAERO_CUDA=OFF
	cmake --build build/fuzz/cmake
	@mkdir -p build/fuzz/sanitized/aero
	ln -sfn $(CURDIR)/python/aero/* $(CURDIR)/build/fuzz/cmake/*.so build/fuzz/sanitized/aero/
	@touch $@

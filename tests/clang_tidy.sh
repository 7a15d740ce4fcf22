#!/usr/bin/env bash
# clang-tidy (bugprone, performance) over every C++ source, in the units that are compiled: the files
# of one unit read their headers once. Where nothing changed since all passed, none is read again.
set -euo pipefail
cd "$(dirname "$0")/.."
database=build/tidy
cuda=$(PATH="$PATH:/usr/local/cuda/bin" command -v nvcc >/dev/null && echo ON || echo OFF)
cmake -S . -B "$database" -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DAERO_CUDA="$cuda" \
  -DPython_EXECUTABLE="$PWD/.venv/bin/python" -DSKBUILD_PROJECT_VERSION=lint >/dev/null
mapfile -t units < <(grep -o '"file": "[^"]*"' "$database/compile_commands.json" | cut -d'"' -f4 | sort -u)
# Those of NEON have no command here.
mapfile -t sources < <(printf '%s\n' "${units[@]}" "$PWD"/kernels/cpu/neon*.cpp | grep -v /kernels/cuda/)
# What launches CUDA kernels has a command where there is a toolkit.
mapfile -t launchers < <(printf '%s\n' "${units[@]}" | grep /kernels/cuda/)
# All of the passes that is not PTX is in the headers of what runs them on the emulated GPU.
drivers=(tests/object_code/cuda_*pass*.cpp)
key=$(cat .clang-tidy tests/clang_tidy.sh $(git ls-files 'kernels/*' 'csrc/*' 'tests/object_code/*.cpp' 'tests/cpp/kernels/*.h') \
  CMakeLists.txt "$database/compile_commands.json" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$database/passed" 2>/dev/null)" = "$key" ]; then exit 0; fi
tidy() { xargs -r -P 2 -n 2 .venv/bin/clang-tidy -p "$database" --quiet "$@"; }
printf '%s\n' "${sources[@]}" | tidy --checks=-bugprone-suspicious-include # a unit includes .cpp
# Addresses in shared memory are int, cublasLt says how large its enumerators are, and what runs the
# passes is the same every time.
gpu_checks=(--checks=-bugprone-signed-bitwise,-bugprone-bool-pointer-implicit-conversion,-bugprone-random-generator-seed,-performance-enum-size
      --header-filter="^$PWD/kernels/")
printf '%s\n' "${launchers[@]}" | tidy "${gpu_checks[@]}"
printf '%s\n' "${drivers[@]}" | xargs -P 2 -I{} .venv/bin/clang-tidy --quiet "${gpu_checks[@]}" {} -- -std=c++20 -I"$PWD"
echo "$key" > "$database/passed"

#!/usr/bin/env bash
# clang-tidy (bugprone, performance) over every C++ source that has a compile command. Files whose
# text, headers and settings did not change since they last passed are not read again.
set -euo pipefail
cd "$(dirname "$0")/.."
database=build/tidy
cmake -S . -B "$database" -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DAERO_CUDA=OFF \
  -DPython_EXECUTABLE="$PWD/.venv/bin/python" -DSKBUILD_PROJECT_VERSION=lint >/dev/null
mapfile -t sources < <(git ls-files 'kernels/*.cpp' 'csrc/*.cpp' ':!kernels/cuda')
key=$(cat .clang-tidy $(git ls-files 'kernels/*' 'csrc/*') CMakeLists.txt | sha256sum | cut -d' ' -f1)
if [ "$(cat "$database/passed" 2>/dev/null)" = "$key" ]; then exit 0; fi
printf '%s\n' "${sources[@]}" | xargs -P 2 -n 2 .venv/bin/clang-tidy -p "$database" --quiet
echo "$key" > "$database/passed"

#!/usr/bin/env bash
# Proof and speed on a GPU machine that can be had for minutes: one command, in bounded time.
#
#   [OUT=build/lease] [PYTHON=python3] bash tests/cuda/lease.sh [SECONDS=470] [cuda|cpu]
#
# It builds, or takes build/offline/native as another machine has built it, and then takes the most
# telling steps first: see `weight`. A step gets a share of the time that is left and is ended there;
# what ran out of time goes on at the end. The folder OUT has every result at once, in at most eight
# files: steps.jsonl has a line for each step that ended, log.txt all that was said, and
# native.tar.gz the libraries. A second call leaves out what passed, on a new machine too if these
# files lie in build/lease there. The exit status is 1 after a failure, 2 where time ran out, 3 for
# both. cpu is a rehearsal of few cases on the installed package, and says nothing about a GPU.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); } # milliseconds
readonly end=$(($(now) + ${1:-470} * 1000)) device=${2:-cuda}
readonly python=${PYTHON:-python3} kept=build/lease
readonly out=${OUT:-$kept}
#: Seconds that a program of ours may take beyond its budget, to end what hangs inside.
readonly grace=${LEASE_GRACE:-25}
#: Seconds below which a step does nothing but begin, on an H100: a share is never less.
readonly least=${LEASE_LEAST:-75}
export PYTHONUNBUFFERED=1 PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin"
declare -A weight=([contact]=50 [awkward]=90 [accuracy]=100 [attention]=110 [schemes]=60 [memcheck]=80 [training]=80)
steps=(contact awkward accuracy attention schemes memcheck training)
as_tests=() as_benchmark=()
if [[ $device == cpu ]]; then
  steps=("${steps[@]:1}")
  as_tests=(--device cpu --stand-in --every 1000) as_benchmark=(--device cpu --tiny)
fi
declare -A outcome=() seconds=()
key=

# The command of a step, for a number of seconds.
command_of() {
  local tests=("$python" tests/cuda/run.py --budget "$2" "${as_tests[@]}")
  local benchmark=("$python" benchmarks/cuda/run.py --results "$out/benchmark.json" --budget "$2" "${as_benchmark[@]}")
  case $1 in
    build) command=("$python" packaging/build_offline.py) ;;
    contact) command=(bash -c 'nvcc -std=c++20 -arch=native -I. tests/cuda/first_contact.cu -o build/first_contact &&
      build/first_contact || exit 1') ;;
    awkward) command=("${tests[@]}" --results "$out/awkward.json" --only awkward) ;;
    accuracy) command=("${tests[@]}" --results "$out/accuracy.json" --only "test_accuracy and not awkward") ;;
    attention) command=("${benchmark[@]}" --only 'ceilings|attention/bfloat16( D128)?/T(512|1024|2048|4096)/') ;;
    schemes) command=("${benchmark[@]}" --only 'schemes|variants') ;;
    memcheck) command=("${tests[@]}" --results "$out/memcheck.json" --memcheck) ;;
    training) command=("${benchmark[@]}" --only step) ;;
  esac
}

# Runs a step for at most so many milliseconds, and keeps what came of it.
run() {
  local step=$1 limit=$2 begun status said group
  local budget=$((limit / 1000 - grace))
  if ((limit <= 0)) || { ((budget < 0)) && [[ $step != build && $step != contact ]]; }; then
    outcome[$step]="no time"
    return
  fi
  begun=$(now)
  said=$(stat -c %s "$out/log.txt")
  command_of "$step" "$budget"
  printf '\n== %s, at most %d s: %s\n' "$step" $((limit / 1000)) "${command[*]}" >>"$out/log.txt"
  timeout --kill-after=5 "$((limit / 1000)).$(printf %03d $((limit % 1000)))" "${command[@]}" >>"$out/log.txt" 2>&1 </dev/null &
  group=$!
  wait "$group"
  status=$?
  kill -KILL -- "-$group" 2>/dev/null # what it left behind would share the GPU with the next step
  case $status in
    0) outcome[$step]=passed ;;
    2) outcome[$step]=unfinished ;;
    3) outcome[$step]="failed, unfinished" ;;
    124 | 137) outcome[$step]=hung ;;
    *) outcome[$step]=failed ;;
  esac
  seconds[$step]=$((($(now) - begun) / 1000))
  tail -c +$((said + 1)) "$out/log.txt" | tail -n 25
  if [[ $step == build ]]; then after_build; fi
  printf '{"step": "%s", "outcome": "%s", "of": "%s", "status": %d, "seconds": %d, "limit": %d}\n' \
    "$step" "${outcome[$step]}" "$key" "$status" "${seconds[$step]}" $((limit / 1000)) >>"$out/steps.jsonl"
  rm -f "$out"/*.writing
  [[ $out -ef $kept ]] || cp -f "$out"/* "$kept"/
}

# Packs the libraries, and says what results are results of: sources, libraries and device. The
# programs below are told what was built, so that none looks again.
after_build() {
  local site=$PWD/build/offline/site identity=
  if [[ $device == cuda ]]; then
    identity=$(PYTHONPATH=$site timeout 60 "$python" benchmarks/cuda/gpu_run.py cuda 2>>"$out/log.txt" </dev/null)
  fi
  [[ -z $identity ]] || export AERO_GPU_SITE=$site AERO_GPU_IDENTITY=$identity
  [[ ! -d build/offline/native ]] || tar -czf "$out/native.tar.gz" -C build/offline native
  key=$({
    find CMakeLists.txt csrc kernels python tests/cuda benchmarks/cuda -type f -regex '.*\.\(py\|cpp\|h\|cu\|cmake\|txt\)' \
      -exec sha256sum {} + | LC_ALL=C sort -k 2
    sha256sum build/offline/native/aero/*.so
    timeout 20 nvidia-smi --query-gpu=name --format=csv,noheader
  } 2>/dev/null | sha256sum | cut -c 1-16)
}

# Takes steps in their order, each with its share of the time that is left.
take() {
  local step rest=0 share left
  for step; do rest=$((rest + weight[$step])); done
  for step; do
    left=$((end - $(now)))
    share=$((left * weight[$step] / rest)) rest=$((rest - weight[$step]))
    ((share >= least * 1000)) || share=$((left < least * 1000 ? left : least * 1000))
    run "$step" "$share"
  done
}

mkdir -p "$out" "$kept"
[[ $out -ef $kept ]] || cp -f "$kept"/* "$out"/ 2>/dev/null
chmod -R u+w "$out"
touch "$out/log.txt" "$out/steps.jsonl"
if [[ -f $out/native.tar.gz && ! -d build/offline/native ]]; then
  mkdir -p build/offline && tar -xzf "$out/native.tar.gz" -C build/offline
fi
if [[ $device == cpu ]]; then
  after_build
else
  weight[build]=0
  run build $(((end - $(now)) / 3))
  [[ ${outcome[build]} == passed ]] || steps=(contact)
fi

todo=()
for step in "${steps[@]}"; do
  if grep -qF "{\"step\": \"$step\", \"outcome\": \"passed\", \"of\": \"$key\"" "$out/steps.jsonl"; then
    outcome[$step]="passed before"
  else
    todo+=("$step")
  fi
done
take "${todo[@]}"
again=()
for step in "${todo[@]}"; do
  [[ ${outcome[$step]} != *unfinished && ${outcome[$step]} != "no time" ]] || again+=("$step")
done
take "${again[@]}"

status=0 table=
for step in build "${steps[@]}"; do
  [[ -n ${outcome[$step]:-} ]] || continue
  printf -v table '%s\n%-10s %-20s %4s s' "$table" "$step" "${outcome[$step]}" "${seconds[$step]:-0}"
  case ${outcome[$step]} in
    passed*) ;;
    unfinished | "no time") status=$((status | 2)) ;;
    "failed, unfinished") status=3 ;;
    *) status=$((status | 1)) ;;
  esac
done
tee -a "$out/log.txt" <<<"$table"
exit "$status"

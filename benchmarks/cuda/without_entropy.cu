// Times the passes of attention for bfloat16, D = 64, causal, and prints JSON: milliseconds of the
// forward and the backward direction by T. Compiled twice by without_entropy.py.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/attention_entropy_passes.h"
#include "kernels/cuda/device_lane.h"

namespace aero::kernels::cuda {
namespace {

constexpr int64_t kWidth = 64, kTokens = 131072, kHeads = 12;
constexpr int kRounds = 9, kCalls = 10;

void require(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
  std::exit(1);
}

template <class Pass>
__global__ void __launch_bounds__(Pass::kThreads)
    timed_pass(const __grid_constant__ typename Pass::Params params) {
  DeviceLane lane;
  Pass::run(params, static_cast<int64_t>(blockIdx.x), lane);
}

template <class Pass>
void launch(const typename Pass::Params& params) {
  require(cudaFuncSetAttribute(timed_pass<Pass>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Pass::kSharedBytes));
  timed_pass<Pass>
      <<<static_cast<unsigned>(Pass::block_count(params)), Pass::kThreads, Pass::kSharedBytes>>>(
          params);
  require(cudaGetLastError());
}

void forward(const AttentionEntropyForwardParams& p) {
  using Short = ShortForwardShape<BFloat16, kWidth>;
  if (p.queries <= Short::kQueries)
    launch<ForwardPass<Short>>(p);
  else
    launch<ForwardPass<ForwardShape<BFloat16, kWidth>>>(p);
}

void backward(const BackwardParams& p) {
  using Shape = BackwardShape<BFloat16, kWidth>;
  launch<BackwardRowsPass<BFloat16>>(p);
  if (p.head_blocks > 0) return launch<BackwardHeadPass<HeadShape<BFloat16, kWidth>>>(p);
  launch<BackwardQueryPass<Shape>>(p);
  launch<BackwardKeyPass<Shape>>(p);
}

/// Device memory filled with numbers between -1 and 1, or floats between `low` and `high`.
void* bfloat16s(int64_t count) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  uint32_t state = 1;
  for (uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    // Sign and mantissa at random; exponents of 1/2, 1/4, 1/8 and 1/16.
    value = static_cast<uint16_t>((state >> 16 & 0x807f) | (123u + (state >> 30)) << 7);
  }
  void* memory = nullptr;
  require(cudaMalloc(&memory, values.size() * 2));
  require(cudaMemcpy(memory, values.data(), values.size() * 2, cudaMemcpyHostToDevice));
  return memory;
}
void* floats(int64_t count, float value) {
  const std::vector<float> values(static_cast<size_t>(count), value);
  void* memory = nullptr;
  require(cudaMalloc(&memory, values.size() * 4));
  require(cudaMemcpy(memory, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  return memory;
}

int multiprocessors() {
  int device = 0, count = 0;
  require(cudaGetDevice(&device));
  require(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <class Call>
double median_milliseconds(Call call) {
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  std::vector<float> samples;
  for (int round = 0; round <= kRounds; ++round) {
    require(cudaEventRecord(begin));
    for (int n = 0; n < kCalls; ++n) call();
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    if (round > 0) samples.push_back(milliseconds / kCalls);  // the first one warms up
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void time_length(int64_t length, bool is_last) {
  BackwardParams p;
  p.data_type = DataType::kBFloat16;
  p.batch = kTokens / length, p.heads = p.key_heads = kHeads;
  p.queries = p.keys = length, p.head_dim = kWidth, p.scale = 0.125, p.is_causal = true;
  static void* const tensors[] = {
      bfloat16s(kTokens * kHeads * kWidth), bfloat16s(kTokens * kHeads * kWidth),
      bfloat16s(kTokens * kHeads * kWidth), bfloat16s(kTokens * kHeads * kWidth),
      bfloat16s(kTokens * kHeads * kWidth), bfloat16s(kTokens * kHeads * kWidth),
      bfloat16s(kTokens * kHeads * kWidth), bfloat16s(kTokens * kHeads * kWidth)};
  static void* const temperature = floats(kHeads * 4096, 0.7f);
  static void* const dentropy = floats(kTokens * kHeads, 0.5f);
  // A table of rows, and sums of the longest calls that are done by heads.
  static const int64_t kWorkspace =
      8 * kTokens * kHeads +
      kMaxHeadPassPositions * kWidth * kHeadPassResidents * multiprocessors();
  static void* const rows[] = {floats(kTokens * kHeads, 0), floats(kTokens * kHeads, 0),
                               floats(3 * kTokens * kHeads, 0), floats(kTokens * kHeads, 0),
                               floats(kWorkspace, 0)};
  const Strides strides{length * kHeads * kWidth, kWidth, kHeads * kWidth};  // [B, T, H, D]
  p.q = {tensors[0], strides}, p.k = {tensors[1], strides}, p.v = {tensors[2], strides};
  p.temperature = {temperature, {0, 4096, 1}};

  AttentionEntropyForwardParams f;
  static_cast<AttentionEntropyParams&>(f) = p;
  f.out = {tensors[3], strides};
  f.entropy = rows[0], f.logsumexp = rows[1], f.statistics = rows[2];
  const double forward_ms = median_milliseconds([&] { forward(f); });

  p.out = {tensors[3], strides}, p.dout = {tensors[4], strides};
  p.dentropy = dentropy, p.statistics = rows[2];
  p.dq = {tensors[5], strides}, p.dk = {tensors[6], strides}, p.dv = {tensors[7], strides};
  p.dtemperature = rows[3];
  p.head_blocks = head_blocks_for(p, multiprocessors());
  p.workspace = rows[4];
  const double backward_ms = median_milliseconds([&] { backward(p); });
  std::printf("  \"%d\": {\"forward\": %.5f, \"backward\": %.5f}%s\n", static_cast<int>(length),
              forward_ms, backward_ms, is_last ? "" : ",");
}

}  // namespace
}  // namespace aero::kernels::cuda

int main() {
  std::printf("{\n");
  for (const int64_t length : {128, 512, 1024, 4096})
    aero::kernels::cuda::time_length(length, length == 4096);
  std::printf("}\n");
}

// One call of attention on a fixed shape, for callgrind to count its instructions:
//
//   AERO_CPU_ISA=avx2 attention_fixed_shape float32|bfloat16 forward|backward
//
// Only `counted` counts. Two heads, T and S no multiple of any tile, one key head for both.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/attention_entropy.h"

using namespace aero::kernels;

namespace {

constexpr int64_t kHeads = 2, kLength = 131, kHeadDim = 64;
constexpr size_t kElements = kHeads * kLength * kHeadDim, kRows = kHeads * kLength;

/// Numbers in [-2, 2) in the element type, by a linear congruence.
struct Numbers {
  explicit Numbers(DataType type, unsigned seed) : bytes(kElements * 4) {
    for (size_t i = 0; i < kElements; ++i) {
      seed = seed * 1664525u + 1013904223u;
      const float value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 22) - 2;
      const size_t size = type == DataType::kFloat32 ? 4 : 2;  // bfloat16: the upper half
      std::memcpy(bytes.data() + i * size, reinterpret_cast<const char*>(&value) + 4 - size, size);
    }
  }
  std::vector<char> bytes;
};

}  // namespace

template <class Params>
__attribute__((noinline)) void run_all(const Params& params, void* workspace) {
  cpu::run(params, workspace, 0, cpu::item_count(params), 0);
}

extern "C" __attribute__((noinline)) void counted_forward(const AttentionEntropyForwardParams& p,
                                                          void* workspace) {
  run_all(p, workspace);
}
extern "C" __attribute__((noinline)) void counted_backward(const AttentionEntropyBackwardParams& p,
                                                           void* workspace) {
  run_all(p, workspace);
}

int main(int, char** arguments) {
  const bool is_float = std::strcmp(arguments[1], "float32") == 0;
  const DataType type = is_float ? DataType::kFloat32 : DataType::kBFloat16;
  Numbers q(type, 1), k(type, 2), v(type, 3), out(type, 4), dout(type, 5), dq(type, 6), dk(type, 7),
      dv(type, 8);
  std::vector<float> temperature(kRows, 0.7f), entropy(kRows), logsumexp(kRows),
      statistics(3 * kRows), dentropy(kRows, 0.3f), dtemperature(kRows);
  const Strides strides{kHeads * kLength * kHeadDim, kLength * kHeadDim, kHeadDim};

  AttentionEntropyForwardParams forward;
  forward.data_type = type;
  forward.batch = 1, forward.heads = kHeads, forward.key_heads = 1;
  forward.queries = forward.keys = kLength, forward.head_dim = forward.value_dim = kHeadDim;
  forward.q = {q.bytes.data(), strides};
  forward.k = {k.bytes.data(), strides};
  forward.v = {v.bytes.data(), strides};
  forward.scale = 0.125;
  forward.temperature = {temperature.data(), {kRows, kLength, 1}};
  forward.is_causal = true;
  forward.out = {out.bytes.data(), strides};
  forward.entropy = entropy.data(), forward.logsumexp = logsumexp.data();
  forward.statistics = statistics.data();

  AttentionEntropyBackwardParams backward;
  static_cast<AttentionEntropyParams&>(backward) = forward;
  backward.out = {out.bytes.data(), strides};
  backward.statistics = statistics.data();
  backward.dout = {dout.bytes.data(), strides};
  backward.dentropy = dentropy.data();
  backward.dq = {dq.bytes.data(), strides};
  backward.dk = {dk.bytes.data(), strides};
  backward.dv = {dv.bytes.data(), strides};
  backward.dtemperature = dtemperature.data();

  const size_t bytes = cpu::workspace_bytes(forward, 1) + cpu::workspace_bytes(backward, 1);
  void* workspace = std::aligned_alloc(64, bytes);
  std::memset(workspace, 0, bytes);
  counted_forward(forward, workspace);
  if (std::strcmp(arguments[2], "backward") == 0) counted_backward(backward, workspace);
  std::free(workspace);
}

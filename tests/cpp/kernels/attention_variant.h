// What a case of attention asks for beside the plain form.
#pragma once

#include <cstdint>
#include <string>

namespace aero::kernels::testing {

struct AttentionVariant {
  int64_t window_left = -1, window_right = -1;
  double softcap = 0, dropout = 0;
  bool has_bias = false, has_fine_bias = false, has_slopes = false, has_sinks = false;
  bool has_max_logits = false;

  std::string describe() const {
    return " window=" + std::to_string(window_left) + "," + std::to_string(window_right) +
           " cap=" + std::to_string(softcap) + " dropout=" + std::to_string(dropout) +
           " bias=" + std::to_string(has_bias + has_fine_bias) +
           " slopes=" + std::to_string(has_slopes) + " sinks=" + std::to_string(has_sinks) +
           " max_logits=" + std::to_string(has_max_logits);
  }
};

/// Whether dropout keeps a weight: the hash of kernels/dropout.h, one at a time.
inline bool is_kept(uint64_t seed, int64_t h, int64_t i, int64_t j, double probability) {
  const auto mixed = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30u)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27u)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31u);
  };
  const uint64_t row =
      mixed(mixed(mixed(seed) + static_cast<uint64_t>(h)) + static_cast<uint64_t>(i));
  auto x = static_cast<uint32_t>(j) * 0x9e3779b9u + static_cast<uint32_t>(row);
  x = (x ^ (x >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u) ^ static_cast<uint32_t>(row >> 32u)) * 0x846ca68bu;
  return (x ^ (x >> 16u)) >= probability * 4294967296.0;
}

}  // namespace aero::kernels::testing

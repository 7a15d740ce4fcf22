// Any bytes as a case of attention: what a coverage-guided fuzzer changes, and what it has kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tests/cpp/kernels/attention_entropy_checks.h"

namespace aero::kernels::testing {

/// Bytes of a case; further ones are not read, and missing ones are 0.
inline constexpr size_t kCaseBytes = 24;

/// Reads choices off bytes, each byte one.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), left_(std::min(size, kCaseBytes)) {}

  /// From 0 to `count` - 1.
  int64_t of(int64_t count) { return next() % count; }
  bool yes() { return next() & 1u; }
  double between(double low, double high) { return low + (high - low) * next() / 255; }
  /// As `of`, of more numbers than a byte has.
  int64_t wide(int64_t count) {
    const int64_t high = next();
    return (256 * high + next()) % count;
  }

 private:
  uint8_t next() { return left_ ? (--left_, *data_++) : uint8_t{0}; }

  const uint8_t* data_;
  size_t left_;
};

/// A case that the entry points may be given, whatever the bytes.
inline AttentionCase attention_case_of(const uint8_t* data, size_t size) {
  Choices choose(data, size);
  AttentionCase c;
  c.type = kDataTypes[static_cast<size_t>(choose.of(4))];
  c.batch = choose.of(3);
  c.key_heads = 1 + choose.of(2);
  c.heads = c.key_heads * (1 + choose.of(3));
  c.queries = choose.yes() ? choose.of(6) : choose.of(140);
  c.keys = choose.yes() ? c.queries : choose.wide(300);
  const int64_t widths[] = {1, 2, 7, 8, 16, 32, 37, 64, 65, 80, 128, 130};
  c.head_dim = widths[choose.of(12)];
  c.value_dim = choose.yes() ? 0 : widths[choose.of(12)];
  c.is_causal = choose.yes();
  c.mask = static_cast<MaskKind>(choose.of(4));
  c.temperature = static_cast<TemperatureKind>(choose.of(6));  // without the sharp rows of the last
  const int64_t flags = choose.of(256);
  c.order = flags & 1 ? Order::kRowMajor : Order::kHeadMajor;
  c.has_dout = flags & 2, c.has_dentropy = flags & 4, c.has_dlogsumexp = flags & 8;
  c.variant.has_slopes = flags & 16, c.variant.has_sinks = flags & 32;
  c.variant.has_max_logits = flags & 64;
  // A row of a sink alone is not empty.
  if ((flags & 128) && !c.variant.has_sinks)
    c.to_empty_rows = std::numeric_limits<double>::quiet_NaN();
  c.threads = 1 + choose.of(9);
  if (c.queries <= kFewQueries && c.keys > 0)
    c.key_parts = 1 + choose.of(std::min(c.keys, int64_t{4}));
  c.variant.window_left = choose.of(80) - 1;
  c.variant.window_right = choose.of(80) - 1;
  if (choose.yes()) c.variant.softcap = choose.between(0.5, 30);
  if (choose.yes()) c.variant.dropout = choose.between(0.01, 0.9);
  const int64_t bias = choose.of(3);
  c.variant.has_bias = bias == 1, c.variant.has_fine_bias = bias == 2;
  return c;
}

}  // namespace aero::kernels::testing

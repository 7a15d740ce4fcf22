// A case of attention: its inputs, outputs and gradients in checked memory.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention_entropy.h"
#include "tests/cpp/kernels/attention_variant.h"
#include "tests/cpp/kernels/run_kernel.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::testing {

enum class MaskKind { kNone, kPadding, kFull, kEmptyRows };
enum class TemperatureKind { kNone, kScalar, kHead, kHeadPosition, kRow, kNegative, kSmall };

struct AttentionCase {
  DataType type = DataType::kFloat32;
  int64_t batch = 1, heads = 2, key_heads = 2, queries = 7, keys = 7, head_dim = 8;
  bool is_causal = true;
  MaskKind mask = MaskKind::kNone;
  TemperatureKind temperature = TemperatureKind::kHeadPosition;
  Order order = Order::kHeadMajor;
  bool has_dout = true, has_dentropy = true, has_dlogsumexp = true;
  bool allow_tf32 = false;
  int64_t threads = 2;
  int64_t key_parts = 1;
  std::optional<double> to_empty_rows = {};  ///< what comes back to rows that see no key
  AttentionVariant variant = {};
  int64_t value_dim = 0;  ///< 0: head_dim

  int64_t value_width() const { return value_dim ? value_dim : head_dim; }
  std::string describe() const {
    auto number = [](const char* name, int64_t value) {
      return std::string(" ") + name + "=" + std::to_string(value);
    };
    return std::string(name_of(type)) + (allow_tf32 ? " TF32" : "") + number("B", batch) +
           number("H", heads) + number("G", key_heads) + number("T", queries) + number("S", keys) +
           number("D", head_dim) + number("Dv", value_width()) + number("causal", is_causal) +
           number("mask", static_cast<int>(mask)) +
           number("temperature", static_cast<int>(temperature)) +
           number("order", static_cast<int>(order)) + number("dout", has_dout) +
           number("dentropy", has_dentropy) + number("dlogsumexp", has_dlogsumexp) +
           number("threads", threads) + number("parts", key_parts) +
           (to_empty_rows ? " to empty rows=" + std::to_string(*to_empty_rows) : "") +
           variant.describe();
  }
};

/// Inputs, outputs and gradients of one case.
struct AttentionProblem {
  explicit AttentionProblem(const AttentionCase& c, double deviation = 1)
      : test(c),
        q(c.type, c.batch, c.heads, c.queries, c.head_dim, c.order),
        k(c.type, c.batch, c.key_heads, c.keys, c.head_dim, c.order),
        v(c.type, c.batch, c.key_heads, c.keys, c.value_width(), c.order),
        temperature(statistic_type(c.type), c.batch, c.heads, c.queries, 1),
        out(c.type, c.batch, c.heads, c.queries, c.value_width(), c.order),
        entropy(statistic_type(c.type), c.batch, c.heads, c.queries, 1),
        logsumexp(entropy),
        max_logits(entropy),
        statistics(statistic_type(c.type), c.batch, c.heads, 3, c.queries),
        dout(out),
        dentropy(entropy),
        dlogsumexp(entropy),
        dmax_logits(entropy),
        dq(q),
        dk(k),
        dv(v),
        dtemperature(entropy),
        bias(c.variant.has_fine_bias ? statistic_type(c.type) : c.type, c.batch, c.heads, c.queries,
             c.keys, c.order),
        dbias(statistic_type(c.type), c.batch, c.heads, c.queries, c.keys),
        slopes(statistic_type(c.type), c.batch, c.heads, 1, 1),
        sinks(slopes),
        dslopes(entropy),
        dsinks(entropy),
        mask(static_cast<size_t>(c.batch * c.heads * c.queries * c.keys)),
        largest_key(static_cast<size_t>(c.batch * c.heads * c.queries), int64_t{-7}) {
    AttentionEntropyForwardParams parts;
    fill_params(parts);
    parts.key_parts = c.key_parts;
    partials.assign(cpu::partial_bytes(parts), kPoison);
    std::mt19937 generator(17);
    for (Tensor* input : {&q, &k, &v, &dout, &dentropy, &dlogsumexp})
      input->fill_normal(generator, input == &q || input == &k ? deviation : 1);
    std::mt19937 others(18);
    dmax_logits.fill_normal(others, 1);
    for (Tensor* input : {&bias, &slopes, &sinks})
      input->fill_normal(others, input == &slopes ? 0.03 : 1);  // times distances
    temperature.for_each([&](int64_t b, int64_t h, int64_t i, int64_t) {
      temperature.set(b, h, i, 0, temperature_value(b, h, i));
    });
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t i = 0; i < c.queries; ++i)
          for (int64_t j = 0; j < c.keys; ++j)
            mask[mask_index(b, h, i, j)] = mask_value(b, i, j, generator);
    if (c.to_empty_rows)
      for (Tensor* gradient : {&dout, &dentropy, &dlogsumexp, &dmax_logits})
        gradient->for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
          if (is_empty(b, h, i)) gradient->set(b, h, i, d, *c.to_empty_rows);
        });
  }

  double temperature_value(int64_t b, int64_t h, int64_t i) const {
    const double head = 0.6 + 0.3 * static_cast<double>(h);
    const double position = head + 0.1 * static_cast<double>(i % 5);
    switch (test.temperature) {
      case TemperatureKind::kNone:
        return 1;
      case TemperatureKind::kScalar:
        return 0.7;
      case TemperatureKind::kHead:
        return head;
      case TemperatureKind::kHeadPosition:
        return position;
      case TemperatureKind::kRow:
        return position + 0.2 * static_cast<double>(b);
      case TemperatureKind::kNegative:
        return i % 2 ? position : -position;
      case TemperatureKind::kSmall:
        return 0.01;
    }
    return 1;
  }
  uint8_t mask_value(int64_t b, int64_t i, int64_t j, std::mt19937& generator) const {
    switch (test.mask) {
      case MaskKind::kNone:
        return 1;
      case MaskKind::kPadding:
        return j >= b + 1;
      case MaskKind::kFull:
        return generator() % 3 != 0;
      case MaskKind::kEmptyRows:
        return i % 3 != 1 && generator() % 4 != 0;
    }
    return 1;
  }
  /// Padding is one row for all heads and queries; of the others one is stored by keys.
  Strides mask_strides() const {
    const int64_t rows = test.queries, row = test.keys, head = rows * row;
    const int64_t batch = test.heads * head;
    if (test.mask == MaskKind::kPadding) return {batch, 0, 0, 1};
    if (test.mask == MaskKind::kEmptyRows) return {batch, head, 1, rows};
    return {batch, head, row, 1};
  }
  size_t mask_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Strides s = mask_strides();
    return static_cast<size_t>(b * s.batch + h * s.head + i * s.row + j * s.column);
  }
  bool visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const AttentionVariant& v = test.variant;
    const int64_t ahead = j - (i + test.keys - test.queries);
    return (!test.is_causal || ahead <= 0) && (v.window_left < 0 || -ahead <= v.window_left) &&
           (v.window_right < 0 || ahead <= v.window_right) && mask[mask_index(b, h, i, j)];
  }
  bool is_empty(int64_t b, int64_t h, int64_t i) const {
    for (int64_t j = 0; j < test.keys; ++j)
      if (visible(b, h, i, j)) return false;
    return true;
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(test.head_dim)); }

  void fill_params(AttentionEntropyParams& p) {
    p.data_type = test.type;
    p.batch = test.batch, p.heads = test.heads, p.key_heads = test.key_heads;
    p.queries = test.queries, p.keys = test.keys, p.head_dim = test.head_dim;
    p.value_dim = test.value_width();
    p.q = q;
    p.k = k;
    p.v = v;
    p.scale = scale();
    p.is_causal = test.is_causal;
    p.allow_tf32 = test.allow_tf32;
    const AttentionVariant& variant = test.variant;
    p.window_left = variant.window_left, p.window_right = variant.window_right;
    p.softcap = variant.softcap;
    p.has_fine_bias = variant.has_fine_bias;
    if (variant.has_bias || variant.has_fine_bias) p.bias = bias, p.bias.strides.column = 1;
    if (variant.has_slopes) p.alibi_slopes = slopes;
    if (variant.has_sinks) p.sinks = sinks;
    if (variant.dropout > 0) p.dropout = {seeds.data(), variant.dropout};
    if (test.temperature != TemperatureKind::kNone) {
      p.temperature = temperature;
      if (test.temperature != TemperatureKind::kRow) p.temperature.strides.batch = 0;
      if (test.temperature == TemperatureKind::kScalar) p.temperature.strides = {};
      if (test.temperature == TemperatureKind::kHead) p.temperature.strides.row = 0;
    }
    if (test.mask != MaskKind::kNone)
      p.mask = {reinterpret_cast<const bool*>(mask.data()), mask_strides()};
  }
  AttentionEntropyForwardParams forward_params() {
    AttentionEntropyForwardParams p;
    fill_params(p);
    p.out = out;
    p.entropy = entropy.data();
    p.logsumexp = logsumexp.data();
    p.statistics = statistics.data();
    if (test.variant.has_max_logits)
      p.max_logits = max_logits.data(), p.largest_key = largest_key.data();
    p.key_parts = test.key_parts;
    p.partials = partials.data();
    return p;
  }
  AttentionEntropyBackwardParams backward_params() {
    AttentionEntropyBackwardParams p;
    fill_params(p);
    p.out = out;
    p.statistics = statistics.data();
    if (test.has_dout) p.dout = dout;
    if (test.has_dentropy) p.dentropy = dentropy.data();
    if (test.has_dlogsumexp) p.dlogsumexp = dlogsumexp.data();
    if (test.variant.has_max_logits) p.dmax_logits = dmax_logits.data();
    p.largest_key = largest_key.data();
    p.dq = dq;
    p.dk = dk;
    p.dv = dv;
    p.dtemperature = dtemperature.data();
    if (p.bias) p.dbias = dbias;
    if (p.alibi_slopes) p.dslopes = dslopes.data();
    if (p.sinks) p.dsinks = dsinks.data();
    p.threads = test.threads;
    return p;
  }
  void run_forward() { run_kernel(forward_params(), test.threads); }
  void run_backward() { run_kernel(backward_params(), test.threads); }

  AttentionCase test;
  Tensor q, k, v, temperature, out, entropy, logsumexp, max_logits, statistics;
  Tensor dout, dentropy, dlogsumexp, dmax_logits, dq, dk, dv, dtemperature;
  Tensor bias, dbias, slopes, sinks, dslopes, dsinks;
  std::vector<int64_t> seeds = {-7, 11, 13};
  Buffer<uint8_t> mask;  ///< as mask_strides() says
  Buffer<int64_t> largest_key;
  Buffer<unsigned char, 64> partials;
};

}  // namespace aero::kernels::testing

// Attention against its definitions: cases, tolerances, and the suite that runs for every
// instruction set.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "tests/cpp/kernels/attention_entropy_reference.h"
#include "tests/cpp/kernels/closeness.h"
#include "tests/cpp/kernels/emulated_tile_registers.h"

namespace aero::kernels::testing {

inline const std::vector<DataType> kDataTypes = {DataType::kFloat32, DataType::kBFloat16,
                                                 DataType::kFloat16, DataType::kFloat64};

// Norm-relative error allowed for out, dq, dk and dv. A result rounded to n bits is off by up to
// 2^-n; probabilities and dS are rounded the same way inside, and dO . O uses the rounded O, so
// four of those; float32 and float64 add the rounding of the sums.
inline double product_tolerance(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 3e-6;
    case DataType::kBFloat16:
      return 4 * 0x1p-8;
    case DataType::kFloat16:
      return 4 * 0x1p-11;
    case DataType::kFloat64:
      return 1e-12;
  }
  return 0;
}

// Norm-relative error allowed for entropy and dtemperature; ten times that at t = 0.01, where the
// scores' own rounding is a hundred times larger.
inline double entropy_tolerance(const AttentionCase& c) {
  const double factor = c.temperature == TemperatureKind::kSmall ? 10 : 1;
  switch (c.type) {
    case DataType::kFloat64:
      return factor * 1e-12;
    case DataType::kFloat32:
      return factor * 1e-5;
    default:
      return factor * 1e-4;
  }
}

/// Rows that see no key, by a mask or by the diagonal, and something that is no number comes back
/// to them; 0 times that must be 0.
inline std::vector<AttentionCase> cases_with_empty_rows(const std::vector<DataType>& types,
                                                        const std::vector<int64_t>& all_queries) {
  std::vector<AttentionCase> cases;
  for (const DataType type : types)
    for (const int64_t queries : all_queries)
      for (const MaskKind mask : {MaskKind::kNone, MaskKind::kPadding, MaskKind::kEmptyRows})
        for (const double value :
             {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
          for (const int64_t threads : {1, 8}) {
            AttentionCase c{.type = type, .batch = 2, .queries = queries, .mask = mask};
            c.keys = mask == MaskKind::kNone ? (queries + 1) / 2 : queries + 3;
            c.is_causal = mask != MaskKind::kEmptyRows;
            if (mask == MaskKind::kPadding) c.keys = queries, c.order = Order::kRowMajor;
            c.threads = threads;
            c.to_empty_rows = value;
            cases.push_back(c);
            c.head_dim = 32, c.key_heads = 1;
            cases.push_back(c);
          }
  return cases;
}

/// The same with a sink, which those rows see. What comes back reaches it through out alone.
inline std::vector<AttentionCase> cases_with_sinks_alone(const std::vector<DataType>& types) {
  std::vector<AttentionCase> cases = cases_with_empty_rows(types, {3, 70});
  for (size_t n = 0; n < cases.size(); ++n) {
    cases[n].has_dentropy = cases[n].has_dlogsumexp = false;
    cases[n].variant = {.has_sinks = true, .has_max_logits = n % 3 == 0};
  }
  return cases;
}

/// What a forward call leaves: out within `tolerance`, over the norm of `sizes`, if given; the
/// entropies within `fine`.
inline void expect_results(const AttentionProblem& p, const AttentionReference& reference,
                           double tolerance, double fine, const AttentionSums& sizes = {}) {
  expect_close("out", p.out.values(), reference.out, tolerance, sizes.out);
  expect_close("entropy", p.entropy.values(), reference.entropy, fine);
  expect_each_close("logsumexp", p.logsumexp.values(), reference.logsumexp, fine);
  if (!p.test.variant.has_max_logits) return;
  expect_each_close("max_logits", p.max_logits.values(), reference.max_logits, fine);
  for (size_t n = 0; n < reference.max_logits.size(); ++n)
    EXPECT_EQ(p.largest_key.data()[n] < 0, std::isinf(reference.max_logits[n])) << "row " << n;
}

/// What a backward call leaves, dtemperature within `fine`; over the norms of `sizes`, if given.
inline void expect_gradients(const AttentionProblem& p, const AttentionReference& reference,
                             double tolerance, double fine, const AttentionSums& sizes = {}) {
  const auto expect = [&](const char* name, const Tensor& actual,
                          std::vector<double> AttentionSums::* gradient, double most) {
    expect_close(name, actual.values(), reference.*gradient, most, sizes.*gradient);
  };
  expect("dq", p.dq, &AttentionSums::dq, tolerance);
  expect("dk", p.dk, &AttentionSums::dk, tolerance);
  expect("dv", p.dv, &AttentionSums::dv, tolerance);
  expect("dtemperature", p.dtemperature, &AttentionSums::dtemperature, fine);
  const AttentionVariant& variant = p.test.variant;
  if (variant.has_bias || variant.has_fine_bias)
    expect("dbias", p.dbias, &AttentionSums::dbias, tolerance);
  if (variant.has_slopes) expect("dslopes", p.dslopes, &AttentionSums::dslopes, tolerance);
  if (variant.has_sinks) expect("dsinks", p.dsinks, &AttentionSums::dsinks, tolerance);
}

inline void expect_gradients_of_keys(const AttentionProblem& p, const AttentionReference& reference,
                                     double tolerance) {
  expect_close("dq", p.dq.values(), reference.dq, tolerance);
  expect_close("dk", p.dk.values(), reference.dk, tolerance);
  expect_close("dv", p.dv.values(), reference.dv, tolerance);
}

/// With `parts` a result may be in error by a share of all that is added up to them: for cases of
/// so few numbers that most of it may cancel.
inline void expect_matches_reference(const AttentionCase& c, bool parts = false) {
  SCOPED_TRACE(c.describe() + " isa=" + cpu::isa_name());
  AttentionProblem p(c);
  p.run_forward();
  const AttentionReference reference(p);
  const double fine = entropy_tolerance(c);
  const double tolerance = std::max(product_tolerance(c.type), fine / 4);
  const AttentionSums sizes = parts ? reference.parts : AttentionSums{};
  expect_results(p, reference, tolerance, fine, sizes);
  p.run_backward();
  expect_gradients(p, reference, tolerance, fine, sizes);
}

/// The kernels for the tile registers where the machine has none.
inline constexpr const char* kEmulatedAmx = "emulated_amx";

inline std::vector<std::string> attention_isa_names() {
  std::vector<std::string> names = cpu::available_isa_names();
  if (can_emulate_tile_registers()) names.emplace_back(kEmulatedAmx);
  return names;
}

/// Every test runs once for each instruction set this machine has or emulates.
class AttentionEntropy : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (is_emulated()) {
      emulation_.emplace();
      bfloat16_attention = &EmulatedTileRegisters::attention_kernels();
    } else {
      isa_.emplace(GetParam());
    }
  }
  void TearDown() override { bfloat16_attention = nullptr; }

  /// The others do not use tile registers.
  std::vector<DataType> data_types() const {
    return is_emulated() ? std::vector{DataType::kBFloat16} : kDataTypes;
  }
  /// Of the tests that need one.
  DataType data_type() const { return data_types().front(); }

 private:
  bool is_emulated() const { return GetParam() == kEmulatedAmx; }

  std::optional<ScopedIsa> isa_;
  std::optional<EmulatedTileRegisters> emulation_;
};

}  // namespace aero::kernels::testing

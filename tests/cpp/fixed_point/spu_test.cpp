// The bits of SPU itself: computed with SPU 0.9.5's plaintext reference protocol (REF2K) in Z_2^64
// with 18 fraction bits from jax.numpy programs; it differs from Cheetah in that it rounds to
// nearest. Inputs and outputs are ring elements.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "csrc/fixed_point/approximations.h"
#include "csrc/fixed_point/rows.h"

namespace aero::fixed_point {
namespace {

using Integers = std::vector<std::int64_t>;

Arithmetic reference_protocol() { return Arithmetic({.truncation = Truncation::kNearest}); }

std::vector<Ring> ring(const Integers& values) { return {values.begin(), values.end()}; }

Integers integers(const std::vector<Ring>& values) { return {values.begin(), values.end()}; }

Integers mapped(const Integers& inputs, const std::function<Ring(Arithmetic&, Ring)>& function) {
  Arithmetic arithmetic = reference_protocol();
  Integers outputs;
  outputs.reserve(inputs.size());
  for (const Ring x : ring(inputs))
    outputs.push_back(static_cast<std::int64_t>(function(arithmetic, x)));
  return outputs;
}

TEST(BitsOfSpu, Exponential) {
  EXPECT_EQ(mapped({-262, -183500, -498073, -865075, -1900544, -3643801},
                   [](Arithmetic& a, Ring x) { return exponential(a, x, {.clip = false}); }),
            (Integers{261888, 130033, 38903, 9467, 168, 0}));
}

TEST(BitsOfSpu, Reciprocal) {
  EXPECT_EQ(mapped({7864, 201850, -393216, 812646, 10747904, -235995136}, reciprocal),
            (Integers{8738432, 340444, -174761, 84562, 6394, -291}));
}

TEST(BitsOfSpu, ReciprocalSquareRoot) {
  EXPECT_EQ(mapped({524, 68157, 235929, 524288, 9830400, 1048576000}, reciprocal_square_root),
            (Integers{5862488, 514160, 276267, 185330, 42803, 4144}));
}

TEST(BitsOfSpu, HyperbolicTangent) {
  EXPECT_EQ(mapped({-1835008, -602931, -104857, 26214, 445644, 1284505}, hyperbolic_tangent),
            (Integers{-262847, -257736, -99518, 25976, 243937, 261452}));
}

TEST(BitsOfSpu, TanhGelu) {
  EXPECT_EQ(mapped({-1835008, -602931, -104857, 26214, 445644, 1284505},
                   [](Arithmetic& a, Ring x) { return gelu(a, x, Gelu::kTanh); }),
            (Integers{2457, -5575, -36174, 14145, 424902, 1286230}));
}

const Integers kRow{78643, -314572, 655360, 0, -104857, 288358};

Integers softmax_of_row(bool broadcast_reciprocal) {
  Arithmetic arithmetic = reference_protocol();
  std::vector<Ring> probabilities(kRow.size());
  softmax(arithmetic, {.broadcast_reciprocal = broadcast_reciprocal}, 1,
          static_cast<std::int64_t>(kRow.size()), ring(kRow).data(), nullptr, probabilities.data());
  return integers(probabilities);
}

TEST(BitsOfSpu, Softmax) {
  EXPECT_EQ(softmax_of_row(false), (Integers{18991, 4165, 173087, 14034, 9365, 42500}));
  EXPECT_EQ(softmax_of_row(true), (Integers{18991, 4165, 173087, 14033, 9365, 42500}));
}

TEST(BitsOfSpu, LayerNorm) {
  Arithmetic arithmetic = reference_protocol();
  const Integers gain{131072, 393216, 262144, 235929, 314572, 183500};
  const Integers bias{26214, -52428, 0, 78643, 104857, -131072};
  std::vector<Ring> y(kRow.size());
  layer_norm(arithmetic, 1, static_cast<std::int64_t>(kRow.size()), 1e-5, ring(kRow).data(),
             ring(gain).data(), ring(bias).data(), y.data());
  EXPECT_EQ(integers(y), (Integers{16910, -582777, 472666, 1604, -105048, -19046}));
}

}  // namespace
}  // namespace aero::fixed_point

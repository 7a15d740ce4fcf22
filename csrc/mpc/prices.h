// Quoted prices: the cost of a protocol's operation according to its paper, where this model has
// no formula for it. A stack description (aero.mpc.load_stack) sets them at run time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace aero::mpc {

// The operations whose price a description can quote, in the order of `kQuotableNames`.
enum class Quotable : std::uint8_t {
  kSetup,
  kEmbedding,
  kWeightProduct,
  kHeadProduct,
  kTruncation,
  kSoftmax,
  kLayerNorm,
  kGelu,
  kRelu,
  kArgmax,
  kRmsNorm,
  kSilu,
  kElementwiseProduct,
  kWeightScaling,
  kReluSquared,
  kTanh,
  kLogistic,
  kExp,
  kReciprocal,
  kReciprocalSquareRoot,
  kSoftCap,
  kOneHot,
  kMasked,
  kDynamicTanh,
  kDynamicErf,
};
inline constexpr std::size_t kNumQuotables = 25;

inline constexpr std::array<std::string_view, kNumQuotables> kQuotableNames{
    "setup",
    "embedding",
    "weight_product",
    "head_product",
    "truncation",
    "softmax",
    "layernorm",
    "gelu",
    "relu",
    "argmax",
    "rmsnorm",
    "silu",
    "elementwise_product",
    "weight_scaling",
    "relu_squared",
    "tanh",
    "logistic",
    "exp",
    "reciprocal",
    "reciprocal_square_root",
    "soft_cap",
    "one_hot",
    "masked",
    "dynamic_tanh",
    "dynamic_erf",
};

// Either a part of what the model derives (`bytes_factor`, `rounds_factor`) or, where `linear`, a
// price per call, row, input and output; then no ciphertext and no OT is counted. Rows, inputs and
// outputs of an m x k x n product: m, m k and m n, of which a causal mask that the stack makes use
// of leaves some; of softmax and norms: rows and elements; of anything else: elements. Softmax
// and argmax reduce a row of n elements in ceil(log2 n) levels.
struct Price {
  bool linear = false;
  double bytes_factor = 1;
  double rounds_factor = 1;
  double bytes_per_call = 0;
  double bytes_per_row = 0;
  double bytes_per_input = 0;
  double bytes_per_output = 0;
  double rounds = 0;
  double rounds_per_level = 0;
  double client_share = 0.5;  // of the bytes, sent by the client

  bool operator==(const Price&) const = default;
};

using Prices = std::array<Price, kNumQuotables>;

// Name of an operation, name of a field of Price, value.
struct PriceEntry {
  std::string_view operation;
  std::string_view field;
  double value = 0;
};

// Throws std::invalid_argument naming the operation and the field, what it may be and what was
// given; factors and prices per unit exclude each other.
Prices with_prices(Prices prices, const std::vector<PriceEntry>& entries);

// Every field that can be set, with its smallest and largest value.
struct PriceField {
  std::string_view name;
  double Price::* member;
  double largest;
};
const std::array<PriceField, 9>& price_fields();

}  // namespace aero::mpc

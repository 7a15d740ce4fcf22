#include "csrc/mpc/functions.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "csrc/mpc/protocols/composites.h"
#include "csrc/mpc/protocols/primitives.h"

namespace aero::mpc {
namespace {

// max(x, s x) = s x + (1 - s) relu(x) for 0 <= s <= 1: two products with public constants, which
// are local, and one truncation of their sum.
Cost leaky_relu(const Stack& stack, std::int64_t elements) {
  return relu(stack, elements) + truncation(stack, elements);
}

// SPU's compiler sees a product of two equal numbers, not a square.
Cost relu_squared(const Stack& stack, std::int64_t elements) {
  return relu(stack, elements) + shared_product(stack, elements);
}

// x / 2 (1 + tanh(x / 2)); x times the logistic function takes 1.71 times the bytes.
Cost silu(const Stack& stack, std::int64_t elements) {
  if (stack.silu == Silu::kLogistic)
    return logistic(stack, elements) + shared_product(stack, elements);
  return truncation(stack, elements) + hyperbolic_tangent(stack, elements) +
         shared_product(stack, elements);
}

// c tanh(x / c): public factors before and behind, each with a truncation.
Cost soft_cap(const Stack& stack, std::int64_t elements) {
  return truncation(stack, elements) + hyperbolic_tangent(stack, elements) +
         truncation(stack, elements);
}

// Mean, squares of the deviations, their mean, epsilon and clamp, 1/sqrt, gain, normalization.
template <bool gain>
Cost layer_norm(const Stack& stack, std::int64_t rows, std::int64_t width) {
  const std::int64_t elements = element_count({rows, width}, "layernorm");
  return truncation(stack, rows) + shared_product(stack, elements) + truncation(stack, rows) +
         shared_product(stack, rows) + relu(stack, rows) + reciprocal_square_root(stack, rows) +
         (gain ? weight_scaling(stack, elements) : Cost{}) + shared_product(stack, elements);
}

// Squares, their mean, 1/sqrt, gain, normalization; no mean to take away, and nothing to clamp.
template <bool gain>
Cost rms_norm(const Stack& stack, std::int64_t rows, std::int64_t width) {
  const std::int64_t elements = element_count({rows, width}, "rmsnorm");
  return shared_product(stack, elements) + truncation(stack, rows) +
         reciprocal_square_root(stack, rows) + (gain ? weight_scaling(stack, elements) : Cost{}) +
         shared_product(stack, elements);
}

// w where a place is the chosen one, else 0. Protocols of shares do not know that the result of an
// equality is one bit: ABY3 makes a number of eight bits, the others of 64.
Cost one_hot(const Stack& stack, std::int64_t elements) {
  const ShareProtocol* shares = share_protocol(stack);
  if (shares == nullptr) return equality(stack, elements) + multiplexer(stack, elements);
  const std::int64_t bits = stack.protocol == Protocol::kAby3 ? 8 : kRingBits;
  return equality(stack, elements) + shares->bits_to_arithmetic(elements, bits) +
         shares->product(elements);
}

// In place of a norm: gain f(alpha x + shift) + bias, f being tanh (DyT, arXiv 2503.10622) or erf
// (Derf, arXiv 2512.10938). Alpha and gain are weights; shift and bias are added without a message.
// Neither paper prices it.
template <Cost (*function)(const Stack&, std::int64_t)>
Cost dynamic_norm(const Stack& stack, std::int64_t elements) {
  return sequential(weight_scaling(stack, elements), 2) + function(stack, elements);
}

template <Cost (*function)(const Stack&, std::int64_t)>
Cost of_elements(const Stack& stack, std::int64_t rows, std::int64_t width) {
  return function(stack, element_count({rows, width}, "function"));
}

std::string_view gelu_lowering(const Stack& stack) {
  switch (stack.gelu) {
    case Gelu::kSegment:
      return "OpenBumbleBee's segment kernel in Z_2^32";
    case Gelu::kPiecewise:
      return "OpenBumbleBee's piecewise polynomials in Z_2^64";
    case Gelu::kErf:
      return "x/2 (1 + jax.lax.erf(x/sqrt(2)))";
    case Gelu::kErfc:
      return "jax.nn.gelu(x, approximate=False): XLA's expansion of erfc";
    case Gelu::kTanh:
      break;
  }
  return "jax.nn.gelu(x): x/2 (1 + tanh(c (x + 0.044715 x^3)))";
}

std::string_view silu_lowering(const Stack& stack) {
  return stack.silu == Silu::kLogistic ? "jax.nn.silu(x): x jax.nn.sigmoid(x)"
                                       : "x/2 (1 + tanh(x/2))";
}

std::string_view exp_lowering(const Stack& stack) {
  return stack.exp_clip ? "where(x > -14, jnp.exp(x), 0)" : "jnp.exp(x)";
}

constexpr char kRelu[] = "max(x, 0)";
constexpr char kReluSquared[] = "jnp.square(max(x, 0))";
constexpr char kLeakyRelu[] = "where(x > 0, x, s x)";
constexpr char kTanh[] = "jnp.tanh(x)";
constexpr char kLogistic[] = "jax.nn.sigmoid(x)";
constexpr char kReciprocal[] = "1 / x";
constexpr char kRsqrt[] = "jax.lax.rsqrt(x)";
constexpr char kSoftCap[] = "c tanh(x/c)";
constexpr char kLayerNorm[] = "(x - mean) (rsqrt(max(0, mean(x^2) - mean^2) + eps) w)";
constexpr char kRmsNorm[] = "x (rsqrt(mean(x^2) + eps) w)";
constexpr char kPlainLayerNorm[] = "(x - mean) rsqrt(max(0, mean(x^2) - mean^2) + eps)";
constexpr char kPlainRmsNorm[] = "x rsqrt(mean(x^2) + eps)";
constexpr char kOneHot[] = "where(i == jnp.arange(n), w, 0)";
constexpr char kMasked[] = "where(b, x, 0)";
constexpr char kDynamicTanh[] = "tanh(a x + s) w";
constexpr char kDynamicErf[] = "jax.lax.erf(a x + s) w";

template <const char* text>
std::string_view written(const Stack&) {
  return text;
}

constexpr std::array kFunctions{
    PricedFunction{"relu", false, of_elements<relu>, written<kRelu>, Quotable::kRelu},
    PricedFunction{"leaky_relu", false, of_elements<leaky_relu>, written<kLeakyRelu>,
                   Quotable::kRelu},
    PricedFunction{"relu_squared", false, of_elements<relu_squared>, written<kReluSquared>,
                   Quotable::kReluSquared},
    PricedFunction{"gelu", false, of_elements<gelu>, gelu_lowering, Quotable::kGelu},
    PricedFunction{"silu", false, of_elements<silu>, silu_lowering, Quotable::kSilu},
    PricedFunction{"tanh", false, of_elements<hyperbolic_tangent>, written<kTanh>, Quotable::kTanh},
    PricedFunction{"logistic", false, of_elements<logistic>, written<kLogistic>,
                   Quotable::kLogistic},
    PricedFunction{"exp", false, of_elements<exponential>, exp_lowering, Quotable::kExp},
    PricedFunction{"reciprocal", false, of_elements<reciprocal>, written<kReciprocal>,
                   Quotable::kReciprocal},
    PricedFunction{"reciprocal_square_root", false, of_elements<reciprocal_square_root>,
                   written<kRsqrt>, Quotable::kReciprocalSquareRoot},
    PricedFunction{"soft_cap", false, of_elements<soft_cap>, written<kSoftCap>, Quotable::kSoftCap},
    PricedFunction{"one_hot", false, of_elements<one_hot>, written<kOneHot>, Quotable::kOneHot},
    PricedFunction{"masked", false, of_elements<multiplexer>, written<kMasked>, Quotable::kMasked},
    PricedFunction{"layernorm", true, layer_norm<true>, written<kLayerNorm>, Quotable::kLayerNorm},
    PricedFunction{"plain_layernorm", true, layer_norm<false>, written<kPlainLayerNorm>,
                   Quotable::kLayerNorm},
    PricedFunction{"rmsnorm", true, rms_norm<true>, written<kRmsNorm>, Quotable::kRmsNorm},
    PricedFunction{"plain_rmsnorm", true, rms_norm<false>, written<kPlainRmsNorm>,
                   Quotable::kRmsNorm},
    PricedFunction{"dynamic_tanh", false, of_elements<dynamic_norm<hyperbolic_tangent>>,
                   written<kDynamicTanh>, Quotable::kDynamicTanh},
    PricedFunction{"dynamic_erf", false, of_elements<dynamic_norm<error_function>>,
                   written<kDynamicErf>, Quotable::kDynamicErf},
};

// Rows of the table by the network's words, which network.h has in the same order.
constexpr std::array<std::string_view, network::kFunctions.size()> kOfFunctions{
    "relu",        "leaky_relu", "gelu", "gelu",       "silu",
    "tanh",        "logistic",   "exp",  "reciprocal", "reciprocal_square_root",
    "relu_squared"};
constexpr std::array<std::string_view, network::kNormKinds.size()> kOfNorms{
    "layernorm", "rmsnorm", "", "dynamic_tanh", "dynamic_erf"};
constexpr std::array<std::string_view, network::kNormKinds.size()> kOfPlainNorms{
    "plain_layernorm", "plain_rmsnorm", "", "dynamic_tanh", "dynamic_erf"};

}  // namespace

std::span<const PricedFunction> priced_functions() { return kFunctions; }

const PricedFunction& priced_function(std::string_view name) {
  const auto found = std::find_if(kFunctions.begin(), kFunctions.end(),
                                  [&](const PricedFunction& one) { return one.name == name; });
  if (found == kFunctions.end())
    throw std::out_of_range("functions: no row is called " + std::string(name));
  return *found;
}

const PricedFunction& priced_function(network::Function function) {
  return priced_function(kOfFunctions[static_cast<std::size_t>(function)]);
}

const PricedFunction* priced_function(network::NormKind kind, bool gain) {
  const std::string_view name = (gain ? kOfNorms : kOfPlainNorms)[static_cast<std::size_t>(kind)];
  return name.empty() ? nullptr : &priced_function(name);
}

}  // namespace aero::mpc

#include "csrc/mpc/cost_report.h"

#include <array>

#include "csrc/mpc/network_analysis.h"
#include "csrc/mpc/operation_cost.h"
#include "csrc/mpc/quoted_cost.h"

namespace aero::mpc {
namespace {

// Whether any operation of a network is this primitive and fulfils the condition.
template <class Primitive, class Condition>
bool any(const network::Network& network, Condition&& condition) {
  for (const network::Segment& segment : network.segments)
    for (const network::Operation& operation : segment.operations)
      if (const auto* found = std::get_if<Primitive>(&operation.primitive))
        if (condition(*found)) return true;
  return false;
}

// The formulas of matrix products, elementwise products, comparisons, truncations, exp, softmax,
// reciprocal, LayerNorm, DyT, Derf, ReLU, SPU's GELU, embedding, argmax and set-up are measured op
// by op between two parties (SPU 0.9.5). The paper's tables, of which 25 of 27 byte counts come
// out, check sums only: what is listed here is in neither.
std::vector<std::string> unchecked_operations(const network::Network& network, const Stack& stack,
                                              bool has_argmax) {
  std::vector<std::string> list;
  const auto note = [&](bool applies, const char* text) {
    if (applies) list.emplace_back(text);
  };
  const auto derived = [&](Quotable operation) {
    return stack.prices[static_cast<std::size_t>(operation)] == Price{};
  };
  const bool has_gelu = derived(Quotable::kGelu) &&
                        any<network::Activation>(network, [](const network::Activation& one) {
                          return one.function == network::Function::kGeluTanh ||
                                 one.function == network::Function::kGeluErf;
                        });
  note(has_gelu && stack.gelu == Gelu::kSegment,
       "act: the segment GELU of OpenBumbleBee is derived from its source, not measured");
  note(has_gelu && stack.gelu == Gelu::kPiecewise,
       "act: the piecewise GELU in Z_2^64 is derived from its source, not measured");
  note(derived(Quotable::kDynamicErf) &&
           any<network::Norm>(
               network,
               [](const network::Norm& one) { return one.kind == network::NormKind::kDynamicErf; }),
       "layernorm: the erf of Derf costs what SPU 0.9.5 computes, on every stack; no paper prices "
       "it");
  note(!stack.secret_shape_factors &&
           any<network::Shape>(network, [](const network::Shape&) { return true; }),
       "PV: beta of shaped attention is public, hence free; secret_shape_factors=True prices a "
       "secret one");
  note(!stack.secret_temperature &&
           any<network::Scores>(network,
                                [](const network::Scores& one) { return one.per_position; }),
       "qkv/proj: the temperature is public, hence free; secret_temperature=True prices a secret "
       "one");
  note(stack.protocol != Protocol::kCheetah,
       "seconds: the arithmetic on shares has rates in spu-epyc alone, 23 % off in the mean and up "
       "to 75 %; other machines count bytes and rounds");
  note(stack.protocol == Protocol::kSecureNn,
       "seconds: no run was timed under SecureNN; the rates are those of SEMI2K and ABY3");
  const bool routes = any<network::Route>(network, [](const network::Route&) { return true; });
  note(routes,
       "ffn: how many numbers a router's choice compares is chance, its price the mean; choices of "
       "groups and the opening of a choice are derived, not measured");
  note(routes && stack.protocol == Protocol::kSecureNn,
       "ffn: a router's choice under SecureNN is derived from SPU's source, not measured");
  note(stack.protocol == Protocol::kSecureNn && has_argmax,
       "argmax: under SecureNN SPU 0.9.5 compares numbers more than 2^44 apart wrongly, and the "
       "first of a single row of logits wins");
  note(stack.exp_ring_bits == RingBits::k32, "softmax: exp in Z_2^32 is derived, no stack runs it");
  note(stack.softmax_steps > 0,
       "softmax: SHAFT's steps are products of this stack, which no run here computes");
  note(!stack.truncations, "all parts: truncations are left out, a bound that no program reaches");
  note(stack.static_max, "softmax: a static bound instead of the maximum is derived, not measured");
  note(stack.causal_skip && derived(Quotable::kHeadProduct) && derived(Quotable::kSoftmax),
       "QK, softmax, PV: skipping masked scores is derived, not measured");
  note(stack.cheapest_layouts,
       "products: blocks and padding chosen by bytes are derived; SPU chooses by rules of its own");
  note(stack.share_ciphertexts && stack.batch_heads,
       "QK, PV: heads that share ciphertexts are derived from SPU's own layout; no stack does it");
  note(stack.fill_ciphertexts,
       "products: cutting vectors at whole ciphertexts is derived from the parts of SPU's own "
       "protocols; no stack does it");
  note(stack.causal_skip && stack.pack_triangle,
       "QK: the packed triangle is derived from SPU's packing; no stack implements it");
  note(stack.comparison_bits < 64,
       "softmax, act, layernorm: narrower comparisons are derived, not measured");
  note(stack.prices != Prices{},
       "operations with a price in the stack's description cost what that quotes, not what was "
       "measured; where it quotes bytes per unit no ciphertexts and OTs are counted");
  return list;
}

// Parts of a priced stack that it quotes no price for.
std::string unquoted_parts(const OperationGraph& operations, const Prices& prices) {
  std::array<bool, kNumKinds> unquoted{};
  for (const Operation& operation : operations)
    if (!is_quoted(prices, operation.shape))
      unquoted[static_cast<std::size_t>(operation.kind)] = true;
  std::string names;
  for (std::size_t kind = 0; kind < kNumKinds; ++kind)
    if (unquoted[kind]) {
      if (!names.empty()) names += ", ";
      names += kind_name(static_cast<Kind>(kind));
    }
  return names;
}

}  // namespace

CostReport simulate(const network::Network& network, const Stack& stack, const Pass& pass) {
  CostReport report;
  report.operations = lower(network, stack, pass);
  report.by_layer.resize(static_cast<std::size_t>(layer_count(network)));
  report.operation_costs.reserve(report.operations.size());
  ShapePrices prices(stack);
  const bool quotes = stack.prices != Prices{};
  std::array<Cost, kNumKinds> kinds{};
  std::array<bool, kNumKinds> occurs{};
  for (const Operation& operation : report.operations) {
    const Cost cost = prices(operation);
    report.operation_costs.push_back(cost);
    report.total = checked(report.total + cost, "the network");
    if (quotes && !is_quoted(stack.prices, operation.shape)) report.base_bytes += cost.comm_bytes();
    const auto kind = static_cast<std::size_t>(operation.kind);
    kinds[kind] += cost;
    occurs[kind] = true;
    Cost& layer = operation.layer == kOutsideLayers
                      ? report.outside_layers
                      : report.by_layer[static_cast<std::size_t>(operation.layer)];
    layer += cost;
  }
  for (std::size_t kind = 0; kind < kNumKinds; ++kind)
    if (occurs[kind]) report.by_kind.emplace_back(static_cast<Kind>(kind), kinds[kind]);
  report.unchecked =
      unchecked_operations(network, stack, occurs[static_cast<std::size_t>(Kind::kArgmax)]);
  if (!quotes) return report;
  const std::string rest = unquoted_parts(report.operations, stack.prices);
  if (!rest.empty())
    report.unchecked.push_back(rest +
                               ": the stack's description quotes no price for all of it; what is "
                               "left costs what the stack that it builds on derives");
  return report;
}

}  // namespace aero::mpc

// The counts of a network: parameters, FLOPs, nonlinear operations.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "csrc/spec/architecture_spec.h"

namespace aero::spec {

// Parameters of AeroForCausalLM for this network; the list is at the definition. With `training`
// also the entropy thresholds, which only the penalty uses.
std::int64_t parameter_count(const ArchitectureSpec& spec, bool training = false);

// Floating-point operations of one forward pass over T tokens; a multiply-add is two. Only matrix
// products count.
struct Flops {
  std::int64_t ffn = 0;
  std::int64_t attention = 0;
  std::int64_t lm_head = 0;  // 0 in the paper's convention, which leaves the head out
  std::int64_t total = 0;
};

enum class FlopsConvention : std::uint8_t {
  kPaper,     // Tables 4-7: 3 T^2 d for the products with the T x T scores
  kExecuted,  // 4 T^2 d for them, all T x T scores computed; and the head
};

Flops flops(const ArchitectureSpec& spec, FlopsConvention convention);

// "paper" or "executed"; throws std::invalid_argument otherwise.
FlopsConvention flops_convention(std::string_view name);

// `count` operations, each on a rows x columns matrix.
struct OperationCount {
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

struct NonlinearOperations {
  OperationCount softmax;       // L H of T x T
  OperationCount layernorm;     // before each sub-block that is there, and the final one; of T x d
  OperationCount dynamic_tanh;  // in place of norms, as are those of erf; of T x d
  OperationCount dynamic_erf;
  OperationCount activation;           // one per FFN that is there; of T x F
  std::string_view activation_symbol;  // as in labels: "G", "R", "LR"; empty without an activation
};

NonlinearOperations nonlinear_operations(const ArchitectureSpec& spec);

// As the paper's tables print it: "SM:144xR^{128x128} LN:24xR^{128x768} G:12xR^{128x3072}".
std::string to_string(const NonlinearOperations& operations);

}  // namespace aero::spec

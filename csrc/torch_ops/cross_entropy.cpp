#include "kernels/cross_entropy.h"

#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "cross_entropy";
constexpr int64_t kIgnored = -100;

/// Checked inputs; the operands keep the memory of the params alive.
struct Inputs {
  Gate gate;
  Operand logits, targets;
  kernels::CrossEntropyParams params;

  Inputs(const Tensor& logits_any, const Tensor& targets_any)
      : gate(kOp, "logits", logits_any, 2, "[N, V]"),
        logits(gate.take(logits_any,
                         {"logits", shape_of(logits_any), "[N, V]", logits_any.scalar_type(), ""})),
        targets(gate.take(targets_any, {"targets", rows(logits_any), "[N]", ScalarType::Long, "",
                                        Layout::kContiguous})) {
    params.data_type = gate.data_type();
    params.rows = logits_any.size(0);
    params.classes = logits_any.size(1);
    params.logits = logits.view({.row = logits.stride(0)});
    params.targets = static_cast<const int64_t*>(targets.data());
    for (int64_t i = 0; i < params.rows; ++i) {
      const int64_t target = params.targets[i];
      if (target != kIgnored && (target < 0 || target >= params.classes))
        refuse(kOp, "targets",
               "from 0 to V - 1 = " + std::to_string(params.classes - 1) + ", or -100",
               std::to_string(target));
    }
  }

  static Shape rows(const Tensor& logits) { return {logits.size(0)}; }
  ScalarType of_rows() const { return statistics_type(params.data_type); }
};

/// The sum of the losses, which depends on no number of threads.
Tensor summed(kernels::CrossEntropyParams& params, const Tensor& logits) {
  const ScalarType type = statistics_type(params.data_type);
  const Result losses(logits, Inputs::rows(logits), type), total(logits, {}, type);
  params.losses = losses.data();
  run_parallel(params);
  const auto add = [&](auto real) {
    using Real = decltype(real);
    double sum = 0;
    for (int64_t i = 0; i < params.rows; ++i)
      sum += static_cast<double>(static_cast<const Real*>(params.losses)[i]);
    *static_cast<Real*>(total.data()) = static_cast<Real>(sum);
  };
  type == ScalarType::Double ? add(double{}) : add(float{});
  return total.tensor();
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  Inputs inputs(logits, targets);
  return summed(inputs.params, logits);
}

Tensor cross_entropy_gradient_(const Tensor& logits, const Tensor& targets, const Tensor& factors) {
  Inputs inputs(logits, targets);
  const Operand of_rows = inputs.gate.take(
      factors, {"factors", Inputs::rows(logits), "[N]", inputs.of_rows(), "", Layout::kContiguous});
  const bool lies_well = logits.size(1) <= 1 || logits.stride(1) == 1;
  if (!lies_well)
    refuse(kOp, "logits", "rows of neighbours, which their gradient replaces",
           "a step between them");
  inputs.params.factors = of_rows.data();
  inputs.params.dlogits = {Result(logits).data(), inputs.params.logits.strides};
  return summed(inputs.params, logits);
}

}  // namespace aero::torch_ops

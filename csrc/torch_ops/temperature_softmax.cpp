#include "kernels/temperature_softmax.h"

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/row_values.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "temperature_softmax";

/// Checked inputs; the operands keep the memory of the params alive.
struct Inputs {
  Gate gate;
  Rows rows;
  ScalarType statistics;
  Operand scores, temperature, mask;
  kernels::TemperatureSoftmaxParams params;

  Inputs(const Tensor& scores_any, const OptionalTensor& temperature_any,
         const OptionalTensor& mask_any, bool is_causal)
      : gate(kOp, "scores", scores_any, 4, "[B, H, T, S]"),
        rows(checked_rows(scores_any)),
        statistics(statistics_type(gate.data_type())),
        scores(gate.take(scores_any, of_scores("scores", scores_any))) {
    params.data_type = gate.data_type();
    params.batch = rows.batch;
    params.heads = rows.heads;
    params.queries = rows.queries;
    params.keys = rows.keys;
    params.scores = scores.view();
    temperature = gate.temperature(temperature_any, statistics, rows);
    params.temperature = temperature.view();
    params.is_causal = is_causal;
    mask = visibility_mask(gate, mask_any, rows);
    params.mask = mask.view<bool>();
  }

  /// A tensor of the shape of the scores.
  static Wanted of_scores(const char* name, const Tensor& scores) {
    return {name, shape_of(scores), "[B, H, T, S]", scores.scalar_type(), " like scores"};
  }

 private:
  static Rows checked_rows(const Tensor& scores) {
    require_possible(kOp, "T", scores.size(2));
    require_possible(kOp, "S", scores.size(3));
    return {scores.size(0), scores.size(1), scores.size(2), scores.size(3)};
  }
};

/// Does a call where its tensors are: on torch's threads, or in torch's stream.
template <class Params>
void run_where_it_is(const Params& params, [[maybe_unused]] const Tensor& scores) {
#if defined(AERO_CUDA)
  if (scores.is_cuda()) return kernels::cuda::launch(params, CudaQueue(kOp, scores).get());
#endif
  run_parallel(params);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> temperature_softmax(const Tensor& scores,
                                                               const OptionalTensor& temperature,
                                                               const OptionalTensor& mask,
                                                               bool is_causal) {
  const Inputs inputs(scores, temperature, mask, is_causal);
  const Result probabilities(scores, shape_of(scores), scores.scalar_type());
  const RowResults results(scores, inputs.rows, inputs.statistics);

  kernels::TemperatureSoftmaxForwardParams params;
  static_cast<kernels::TemperatureSoftmaxParams&>(params) = inputs.params;
  params.probabilities = probabilities.view();
  results.pass_to(params);
  run_where_it_is(params, scores);
  return {probabilities.tensor(), results.entropy.tensor(), results.logsumexp.tensor(),
          results.statistics.tensor()};
}

std::tuple<Tensor, Tensor> temperature_softmax_backward(
    const OptionalTensor& dprobabilities, const OptionalTensor& dentropy,
    const OptionalTensor& dlogsumexp, const Tensor& scores, const OptionalTensor& temperature,
    const OptionalTensor& mask, const Tensor& statistics, bool is_causal, bool needs_scores,
    bool needs_temperature) {
  const Inputs inputs(scores, temperature, mask, is_causal);
  const Operand dprobabilities_rows =
      inputs.gate.take(dprobabilities, Inputs::of_scores("dprobabilities", scores));
  const RowGradients row_gradients(inputs.gate, scores, inputs.rows, inputs.statistics,
                                   {statistics, dentropy, dlogsumexp},
                                   needs_temperature && temperature);
  const Result dscores(scores, shape_of(scores), scores.scalar_type(), needs_scores);

  kernels::TemperatureSoftmaxBackwardParams params;
  static_cast<kernels::TemperatureSoftmaxParams&>(params) = inputs.params;
  params.dprobabilities = dprobabilities_rows.view();
  row_gradients.pass_to(params);
  params.dscores = dscores.view();
  run_where_it_is(params, scores);
  return {dscores.tensor(), row_gradients.dtemperature(temperature, needs_temperature)};
}

}  // namespace aero::torch_ops

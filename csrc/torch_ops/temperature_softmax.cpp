#include "kernels/temperature_softmax.h"

#include "csrc/torch_ops/cuda_queue.h"
#include "csrc/torch_ops/operators.h"
#include "csrc/torch_ops/parallel.h"
#include "csrc/torch_ops/row_values.h"
#include "csrc/torch_ops/tensor_checks.h"

namespace aero::torch_ops {
namespace {

constexpr const char* kOp = "temperature_softmax";

/// Checked inputs; `scores` keeps alive what the params point to.
struct Inputs {
  Tensor scores;
  kernels::TemperatureSoftmaxParams params;
  Rows rows;
  ScalarType statistics;

  Inputs(const Tensor& scores_any, const OptionalTensor& temperature, const OptionalTensor& mask,
         bool is_causal)
      : scores(with_contiguous_rows(checked(scores_any))),
        rows{scores.size(0), scores.size(1), scores.size(2), scores.size(3)},
        statistics(statistics_type(data_type_of(kOp, "scores", scores))) {
    params.data_type = data_type_of(kOp, "scores", scores);
    params.batch = rows.batch;
    params.heads = rows.heads;
    params.queries = rows.queries;
    params.keys = rows.keys;
    params.scores = scores.const_data_ptr();
    params.scores_strides = strides_of(scores);
    if (temperature) {
      require_device(kOp, "temperature", *temperature, scores, "scores");
      params.temperature_strides = temperature_strides(kOp, *temperature, statistics, rows);
      params.temperature = temperature->const_data_ptr();
    }
    params.is_causal = is_causal;
    if (mask) {
      require_device(kOp, "mask", *mask, scores, "scores");
      params.mask_strides = mask_strides(kOp, *mask, rows);
      params.mask = mask->const_data_ptr<bool>();
    }
  }

 private:
  static Tensor checked(const Tensor& scores) {
    require_dim(kOp, "scores", scores, 4, "[B, H, T, S]");
    require_possible(kOp, "T", scores.size(2));
    require_possible(kOp, "S", scores.size(3));
    return scores;
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
  const Tensor probabilities = empty(scores, shape_of(scores), scores.scalar_type());
  const RowResults results(scores, inputs.rows, inputs.statistics);

  kernels::TemperatureSoftmaxForwardParams params;
  static_cast<kernels::TemperatureSoftmaxParams&>(params) = inputs.params;
  params.probabilities = probabilities.mutable_data_ptr();
  params.probabilities_strides = strides_of(probabilities);
  results.pass_to(params);
  run_where_it_is(params, scores);
  return {probabilities, results.entropy, results.logsumexp, results.statistics};
}

std::tuple<Tensor, Tensor> temperature_softmax_backward(
    const OptionalTensor& dprobabilities, const OptionalTensor& dentropy,
    const OptionalTensor& dlogsumexp, const Tensor& scores, const OptionalTensor& temperature,
    const OptionalTensor& mask, const Tensor& statistics, bool is_causal, bool needs_scores,
    bool needs_temperature) {
  const Inputs inputs(scores, temperature, mask, is_causal);
  require_device(kOp, "statistics", statistics, scores, "scores");
  for (const OptionalTensor* gradient : {&dprobabilities, &dentropy, &dlogsumexp})
    if (*gradient) require_device(kOp, "every gradient", **gradient, scores, "scores");
  if (dprobabilities) {
    require_shape(kOp, "dprobabilities", *dprobabilities, shape_of(scores), "[B, H, T, S]");
    require_dtype(kOp, "dprobabilities", *dprobabilities, scores.scalar_type(), " like scores");
  }

  const RowGradients row_gradients(kOp, scores, inputs.rows, inputs.statistics,
                                   {statistics, dentropy, dlogsumexp},
                                   needs_temperature && temperature);
  const OptionalTensor dprobabilities_rows =
      dprobabilities ? OptionalTensor(with_contiguous_rows(*dprobabilities)) : dprobabilities;
  const Tensor dscores = empty(scores, needs_scores ? shape_of(scores) : std::vector<int64_t>{0},
                               scores.scalar_type());

  kernels::TemperatureSoftmaxBackwardParams params;
  static_cast<kernels::TemperatureSoftmaxParams&>(params) = inputs.params;
  params.dprobabilities = data_or_null(dprobabilities_rows);
  if (dprobabilities_rows) params.dprobabilities_strides = strides_of(*dprobabilities_rows);
  row_gradients.pass_to(params);
  if (needs_scores) {
    params.dscores = dscores.mutable_data_ptr();
    params.dscores_strides = strides_of(dscores);
  }
  run_where_it_is(params, scores);
  return {dscores, row_gradients.dtemperature(temperature)};
}

}  // namespace aero::torch_ops

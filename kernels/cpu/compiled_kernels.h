// Fills a table with every kernel, as the including file is compiled.
#pragma once

#include "kernels/cpu/attention_passes.h"
#include "kernels/cpu/entropy_regularization_passes.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scaled_ffn_passes.h"
#include "kernels/cpu/temperature_softmax_passes.h"

namespace aero::kernels::cpu {
namespace {

/// Entries in the order of DataType. Forward and Backward: templates over element and real type.
template <template <class, class> class Forward, template <class, class> class Backward>
constexpr auto both_directions() noexcept {
  return BothDirections<typename Forward<float, float>::Params,
                        typename Backward<float, float>::Params>{
      {kernel_of<Forward<float, float>>(), kernel_of<Forward<BFloat16, float>>(),
       kernel_of<Forward<Float16, float>>(), kernel_of<Forward<double, double>>()},
      {kernel_of<Backward<float, float>>(), kernel_of<Backward<BFloat16, float>>(),
       kernel_of<Backward<Float16, float>>(), kernel_of<Backward<double, double>>()}};
}

constexpr Kernels compiled_kernels() noexcept {
  return {both_directions<AttentionEntropyForward, AttentionEntropyBackward>(),
          both_directions<TemperatureSoftmaxForward, TemperatureSoftmaxBackward>(),
          entropy_regularization_kernels<float>(), entropy_regularization_kernels<double>(),
          scaled_ffn_kernels()};
}

}  // namespace
}  // namespace aero::kernels::cpu

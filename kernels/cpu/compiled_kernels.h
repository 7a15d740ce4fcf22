// Fills a table with every kernel or those of bfloat16, as the including file is compiled.
#pragma once

#include "kernels/cpu/attention_passes.h"
#include "kernels/cpu/cross_entropy_passes.h"
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

/// Those that instructions for bfloat16 change, and no others.
constexpr Kernels bfloat16_kernels() noexcept {
  constexpr auto type = static_cast<int>(DataType::kBFloat16);
  Kernels kernels{};
  kernels.attention_entropy.forward[type] = kernel_of<AttentionEntropyForward<BFloat16, float>>();
  kernels.attention_entropy.backward[type] = kernel_of<AttentionEntropyBackward<BFloat16, float>>();
  kernels.temperature_softmax.forward[type] =
      kernel_of<TemperatureSoftmaxForward<BFloat16, float>>();
  kernels.temperature_softmax.backward[type] =
      kernel_of<TemperatureSoftmaxBackward<BFloat16, float>>();
  kernels.cross_entropy[type] = kernel_of<CrossEntropy<BFloat16, float>>();
  kernels.scaled_ffn = scaled_ffn_kernels();
  return kernels;
}

constexpr Kernels compiled_kernels() noexcept {
  return {both_directions<AttentionEntropyForward, AttentionEntropyBackward>(),
          both_directions<TemperatureSoftmaxForward, TemperatureSoftmaxBackward>(),
          {kernel_of<CrossEntropy<float, float>>(), kernel_of<CrossEntropy<BFloat16, float>>(),
           kernel_of<CrossEntropy<Float16, float>>(), kernel_of<CrossEntropy<double, double>>()},
          entropy_regularization_kernels<float>(),
          entropy_regularization_kernels<double>(),
          scaled_ffn_kernels()};
}

}  // namespace
}  // namespace aero::kernels::cpu

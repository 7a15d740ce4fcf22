// Fills a table with kernels as compiled in the including file: for its instruction set.
#pragma once

#include "kernels/cpu/element.h"
#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::cpu {
namespace {

template <class Pass>
constexpr Kernel<typename Pass::Params> kernel_of() noexcept {
  return {Pass::scratch_bytes, Pass::item_count, Pass::run};
}

/// Entries in the order of DataType. Forward and Backward: templates over element and real type.
template <template <class, class> class Forward, template <class, class> class Backward>
constexpr auto table_of() noexcept {
  return KernelTable<typename Forward<float, float>::Params,
                     typename Backward<float, float>::Params>{
      {kernel_of<Forward<float, float>>(), kernel_of<Forward<BFloat16, float>>(),
       kernel_of<Forward<Float16, float>>(), kernel_of<Forward<double, double>>()},
      {kernel_of<Backward<float, float>>(), kernel_of<Backward<BFloat16, float>>(),
       kernel_of<Backward<Float16, float>>(), kernel_of<Backward<double, double>>()}};
}

}  // namespace
}  // namespace aero::kernels::cpu

// The four element types as C++ types, and their conversion to and from the type that is computed
// with.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/layout.h"

namespace aero::kernels::cpu {
namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

/// Element type of the large tensors and the real type of arithmetic and statistics.
template <class E, class R>
struct Types {
  using Element = E;
  using Real = R;
};

template <class Function>
void with_element(DataType data_type, Function&& function) {
  switch (data_type) {
    case DataType::kFloat32:
      return function(Types<float, float>{});
    case DataType::kBFloat16:
      return function(Types<BFloat16, float>{});
    case DataType::kFloat16:
      return function(Types<Float16, float>{});
    case DataType::kFloat64:
      return function(Types<double, double>{});
  }
}

template <class Real>
Real to_real(Real x) {
  return x;
}
template <class Real>
Real to_real(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16u);
}
template <class Real>
Real to_real(Float16 x) {
  // The exponent is rebased by a multiplication, which is exact and also right for subnormals.
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16u;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13u;
  const bool special = (x.bits & 0x7c00u) == 0x7c00u;
  const float value = special ? std::bit_cast<float>(magnitude | 0x7f800000u)
                              : std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

template <class Element>
Element from_real(Element x) {
  return x;
}
template <class Element>
  requires(sizeof(Element) == 2)
Element from_real(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  if constexpr (std::is_same_v<Element, BFloat16>) {
    // Round to nearest, ties to even: add half a unit of the kept part, less one where it is even.
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return {static_cast<uint16_t>(is_nan ? 0x7fc0u : rounded)};
  } else {
    const uint32_t sign = (bits >> 16u) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (is_nan) {
      half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // 65520 rounds to infinity
      half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves units of 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      half = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f);
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u;
    }
    return {static_cast<uint16_t>(half | sign)};
  }
}

}  // namespace
}  // namespace aero::kernels::cpu

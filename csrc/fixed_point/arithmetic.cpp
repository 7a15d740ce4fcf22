#include "csrc/fixed_point/arithmetic.h"

#include <cmath>

namespace aero::fixed_point {

Ring Arithmetic::encode(double value) const {
  if (std::isnan(value)) return 0;
  const double bound = std::ldexp(1.0, static_cast<int>(ring_bits_) - 2);
  const double scaled = std::ldexp(value, static_cast<int>(settings_.fraction_bits));
  if (scaled >= bound) return (Ring{1} << (ring_bits_ - 2)) - 1;
  if (scaled <= -bound) return ~((Ring{1} << (ring_bits_ - 2)) - 1);
  return static_cast<Ring>(static_cast<std::int64_t>(scaled));
}

double Arithmetic::decode(Ring value) const {
  return std::ldexp(static_cast<double>(static_cast<std::int64_t>(value)),
                    -static_cast<int>(settings_.fraction_bits));
}

}  // namespace aero::fixed_point

#include "csrc/mpc/cost.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace aero::mpc {

Cost& Cost::operator+=(const Cost& other) {
  for_each_count([](CountName, double& sum, double count) { sum += count; }, *this, other);
  return *this;
}

Cost operator+(Cost left, const Cost& right) { return left += right; }

Cost sequential(const Cost& one, double copies) {
  Cost all = one;
  for_each_count([=](CountName, double& count) { count *= copies; }, all);
  return all;
}

Cost with_rounds(Cost cost, double rounds) {
  cost.rounds = rounds;
  return cost;
}

Cost parallel(const Cost& one, double copies) {
  return with_rounds(sequential(one, copies), one.rounds);
}

Cost checked(const Cost& cost, std::string_view what) {
  Cost rounded = cost;
  // Their sum to the nearest byte, so that it orders costs as the exact sum does.
  rounded.sent_bytes[kServer] = std::nearbyint(cost.sent_bytes[kServer]);
  rounded.helper_bytes = std::nearbyint(cost.helper_bytes);
  rounded.dealer_bytes = std::nearbyint(cost.dealer_bytes);
  rounded.sent_bytes[kClient] =
      std::nearbyint(cost.comm_bytes()) - rounded.sent_bytes[kServer] - rounded.helper_bytes;
  const auto check = [&](std::string_view name, double count) {
    if (!(count >= 0 && count <= kMaxExactCount)) {
      throw std::invalid_argument("simulate: " + std::string(what) + " has more than 2^53 " +
                                  std::string(name) +
                                  " and cannot be counted exactly; choose "
                                  "a smaller context_length, or fewer layers and add them up");
    }
  };
  check("comm_bytes", rounded.comm_bytes());
  for_each_count([&](CountName name, double count) { check(name.name, count); }, rounded);
  return rounded;
}

std::int64_t element_count(std::initializer_list<std::int64_t> sizes, std::string_view what) {
  constexpr auto kMaxElements = static_cast<std::int64_t>(kMaxExactCount);
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product) || product > kMaxElements) {
      throw std::invalid_argument("simulate: " + std::string(what) +
                                  " has more than 2^53 elements and cannot be counted exactly; "
                                  "choose smaller sizes");
    }
  }
  return product;
}

}  // namespace aero::mpc

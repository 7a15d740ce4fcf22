#include "csrc/mpc/protocols/primitives.h"

namespace aero::mpc {

Cost truncation(const Stack& stack, std::int64_t elements, std::int64_t bits) {
  if (!stack.truncations) return {};
  if (const ShareProtocol* shares = share_protocol(stack)) return shares->truncation(elements);
  return truncation(elements, bits);
}

Cost comparison(const Stack& stack, std::int64_t elements, std::int64_t bits) {
  if (const ShareProtocol* shares = share_protocol(stack)) return shares->comparison(elements);
  return comparison(elements, bits);
}

Cost equality(const Stack& stack, std::int64_t elements, std::int64_t bits) {
  if (const ShareProtocol* shares = share_protocol(stack)) return shares->equality(elements);
  return equality(elements, bits);
}

Cost multiplexer(const Stack& stack, std::int64_t elements) {
  if (const ShareProtocol* shares = share_protocol(stack)) return shares->multiplexer(elements);
  return multiplexer(elements);
}

Cost bitwise_and(const Stack& stack, std::int64_t elements, std::int64_t bits) {
  if (const ShareProtocol* shares = share_protocol(stack))
    return shares->bitwise_and(elements, bits);
  return bitwise_and(elements, bits);
}

Cost arithmetic_to_bits(const Stack& stack, std::int64_t elements) {
  if (const ShareProtocol* shares = share_protocol(stack))
    return shares->arithmetic_to_bits(elements);
  // A Kogge-Stone adder of 13 ANDs.
  return sequential(bitwise_and(elements, kRingBits), 13);
}

Cost bit_to_arithmetic(const Stack& stack, std::int64_t elements) {
  if (const ShareProtocol* shares = share_protocol(stack))
    return shares->bits_to_arithmetic(elements, 1);
  return bit_to_arithmetic(elements);
}

Cost result_to_arithmetic(const Stack& stack, std::int64_t elements) {
  if (const ShareProtocol* shares = share_protocol(stack))
    return shares->bits_to_arithmetic(elements, shares->result_bits);
  return bit_to_arithmetic(elements);
}

Cost packed_bits_to_arithmetic(const Stack& stack, std::int64_t elements, std::int64_t bits) {
  if (const ShareProtocol* shares = share_protocol(stack))
    return shares->bits_to_arithmetic(elements, bits);
  return packed_bits_to_arithmetic(elements, bits);
}

}  // namespace aero::mpc

// The steps that every operation is made of, on the protocol of a stack. Under Cheetah they are
// those of oblivious_transfer.h, elementwise_product.h and matmul.h; under SEMI2K, ABY3 and
// SecureNN rows of share_protocols.cpp.
#pragma once

#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/protocols/matmul.h"
#include "csrc/mpc/protocols/matmul_plan.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

// Drops `bits` bits.
Cost truncation(const Stack& stack, std::int64_t elements, std::int64_t bits = kFractionBits);

// x > y on `bits` bits.
Cost comparison(const Stack& stack, std::int64_t elements, std::int64_t bits = kRingBits);

Cost equality(const Stack& stack, std::int64_t elements, std::int64_t bits = kRingBits);

// Selects x or 0 by a shared bit.
Cost multiplexer(const Stack& stack, std::int64_t elements);

// Of words of `bits` bits.
Cost bitwise_and(const Stack& stack, std::int64_t elements, std::int64_t bits);

// Arithmetic shares become shares of the 64 bits.
Cost arithmetic_to_bits(const Stack& stack, std::int64_t elements);

Cost bit_to_arithmetic(const Stack& stack, std::int64_t elements);

// The result of a comparison becomes an arithmetic share.
Cost result_to_arithmetic(const Stack& stack, std::int64_t elements);

// `bits` shared bits become one arithmetic share.
Cost packed_bits_to_arithmetic(const Stack& stack, std::int64_t elements, std::int64_t bits);

// The steps of a protocol on shares of words: neither ciphertexts nor oblivious transfers between
// two parties. SPU's `libspu/mpc/semi2k`, `libspu/mpc/aby3` and `libspu/mpc/securenn`.
struct ShareProtocol {
  Cost (*truncation)(std::int64_t elements);
  Cost (*product)(std::int64_t elements);
  Cost (*square)(std::int64_t elements);
  Cost (*comparison)(std::int64_t elements);
  Cost (*equality)(std::int64_t elements);
  Cost (*multiplexer)(std::int64_t elements);
  Cost (*bitwise_and)(std::int64_t elements, std::int64_t bits);
  Cost (*arithmetic_to_bits)(std::int64_t elements);
  Cost (*bits_to_arithmetic)(std::int64_t elements, std::int64_t bits);
  // Of shares, without the truncation.
  Cost (*matmul)(const MatmulShape& shape, RightFactor right);
  // A vector that one party knows becomes shares.
  Cost (*sharing)(std::int64_t elements, std::size_t owner);
  // The row of a shared table at a shared index, of one of `tokens`.
  Cost (*table_row)(std::int64_t tokens, std::int64_t rows, std::int64_t width);
  // What a node of argmax does besides two comparisons and two tests for equality.
  Cost (*argmax_picks)(std::int64_t nodes);
  // As many as the protocol holds a comparison's result for.
  std::int64_t result_bits = 1;
};

// nullptr of Cheetah.
const ShareProtocol* share_protocol(const Stack& stack);

}  // namespace aero::mpc

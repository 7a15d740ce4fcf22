// Matrix products under RLWE encryption: SPU `libspu/mpc/cheetah/arith/cheetah_dot.cc`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/protocols/matmul_plan.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

// Left factor known to the client, right factor to the server: one plaintext x ciphertext product.
Cost plaintext_product(const Stack& stack, const MatmulShape& shape);

// Which party's factor travels encrypted in the first tile of such a product, which stands for all;
// the other party evaluates.
std::size_t product_encryptor(const Stack& stack, const MatmulShape& shape);

// kOpened: shared, and what SEMI2K opens of it under a mask is kept of an earlier product.
enum class RightFactor : std::uint8_t { kShared, kServerPrivate, kOpened };

// Left factor secret-shared, tiled by the stack's memory limit; without the truncation.
Cost matmul(const Stack& stack, const MatmulShape& shape, RightFactor right);

// A weight is private to the server or secret-shared, as the stack says.
RightFactor weight_factor(const Stack& stack);

// Along what a product with a large weight is cut: results of the inner dimension are added up,
// columns lie side by side.
enum class Slices : std::uint8_t { kInner, kColumns };

// The right factor is a weight: at most `stack.largest_product` of it at once. `opened`: by an
// earlier pass.
Cost weight_matmul(const Stack& stack, const MatmulShape& shape, Slices along, bool opened);

}  // namespace aero::mpc

// Q K^T of several heads under a causal mask, with responses that hold hardly anything but live
// scores: a layout of this project, derived from matmul.h's, which no stack implements.
#pragma once

#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/protocols/matmul.h"

namespace aero::mpc {

// `heads` products T x d_k x T of shares, of which the scores on and below the diagonal are wanted;
// without the truncation. In one go, so that heads share responses.
Cost packed_triangles(const MatmulShape& shape, std::int64_t heads);

// Coefficients of responses that one head's product fills; T (T + 1) / 2 of them are live scores.
std::int64_t triangle_slots(const MatmulShape& shape);

}  // namespace aero::mpc

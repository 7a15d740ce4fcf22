#include "csrc/mpc/protocols/composites.h"

#include <cstddef>
#include <vector>

#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/matmul.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"
#include "csrc/mpc/protocols/primitives.h"

namespace aero::mpc {
namespace {

// Fixed-point product and square: with the truncation by f bits that follows.
Cost scaled_product(const Stack& stack, std::int64_t elements) {
  return product(stack, elements) + truncation(stack, elements);
}

Cost scaled_square(const Stack& stack, std::int64_t elements) {
  return square(stack, elements) + truncation(stack, elements);
}

// hlo/reduce.cc, TreeReduce: the pairs of each step, halves against halves, then what was left over
// where a length was odd, one after the other.
std::vector<std::int64_t> tree_pairs(std::int64_t elements) {
  std::vector<std::int64_t> pairs;
  std::size_t left_over = 0;
  for (; elements > 1; elements /= 2) {
    pairs.push_back(elements / 2);
    left_over += static_cast<std::size_t>(elements % 2);
  }
  pairs.insert(pairs.end(), left_over, 1);
  return pairs;
}

// Arithmetic to boolean shares, then the prefix-or that finds the leading bit in six doublings.
Cost prefix_or(const Stack& stack, std::int64_t elements) {
  Cost cost = arithmetic_to_bits(stack, elements);
  for (const std::int64_t bits : {63, 62, 60, 56, 48, 32}) {
    cost += bitwise_and(stack, elements, bits);
  }
  return cost;
}

// A maximum per row takes live - rows comparisons over the steps of a tree. That each step fills up
// its own messages is not counted (61 rows of 61 sent 0.9 kB more of 12.5 MB): where a length is
// odd there are more steps, so that longer rows could seem cheaper.
Cost row_maximum(const Stack& stack, const SoftmaxShape& shape) {
  return with_rounds(relu(stack, shape.live - shape.rows),
                     relu(stack, 1).rounds * static_cast<double>(tree_pairs(shape.columns).size()));
}

// OpenBumbleBee's segment kernel: x cut at three points, polynomials of degree 3 and 6 in Z_2^32
// with 12 fraction bits, and the result extended to Z_2^64.
Cost segment_gelu(const Stack& stack, std::int64_t elements) {
  constexpr std::int64_t kRing = 32;
  constexpr std::int64_t kFraction = 12;
  return truncation(elements, kFractionBits - kFraction, kRing) +
         batched_comparison(elements, 24, 3) + multiplexer(elements, kRing) +
         sequential(square(stack, elements, Ring::kZ2k32), 2) +
         product(stack, elements, Ring::kZ2k32) +
         sequential(truncation(elements, kFraction, kRing), 4) +
         sequential(multiplexer(elements, kRing), 2) + correlated_message(elements, kRing, kRing);
}

// The same polynomials in Z_2^64: the rounds of the selection count for three in sequence.
Cost piecewise_gelu(const Stack& stack, std::int64_t elements) {
  return sequential(comparison(stack, elements), 3) +
         sequential(scaled_product(stack, elements), 4) +
         sequential(truncation(stack, elements), 6) +
         with_rounds(multiplexer(stack, elements), 3 * multiplexer(stack, 1).rounds);
}

// 0.5 x (1 + tanh(c (x + 0.044715 x^3))).
Cost tanh_gelu(const Stack& stack, std::int64_t elements) {
  return sequential(scaled_product(stack, elements), 2) +
         sequential(truncation(stack, elements), 2) + hyperbolic_tangent(stack, elements) +
         truncation(stack, elements) + scaled_product(stack, elements);
}

// hal's |y| is the sign, as arithmetic shares, times y.
Cost magnitude(const Stack& stack, std::int64_t elements) {
  return comparison(stack, elements) + result_to_arithmetic(stack, elements) +
         product(stack, elements);
}

// x / 2 times erfc(-x / sqrt(2)) as XLA expands erfc and JAX's exact GELU calls it: of y = -x /
// sqrt(2) a polynomial of degree 6 in y^2 for |y| < 1, else exp(-y^2) / |y| times polynomials of
// degree 8 and 7 in 1 / y^2, on either side of |y| = 2. Every element pays all three and the four
// comparisons and choices between them.
Cost erfc_gelu(Stack stack, std::int64_t elements) {
  stack.exp_clip = false;
  return sequential(truncation(stack, elements), 5) + magnitude(stack, elements) +
         sequential(scaled_product(stack, elements), 23) +
         sequential(comparison(stack, elements) + multiplexer(stack, elements), 4) +
         exponential(stack, elements) + sequential(reciprocal(stack, elements), 2);
}

// Squarings in Z_2^32 with 12 fraction bits; one message carries the result back to Z_2^64.
Cost squarings_in_ring_32(const Stack& stack, std::int64_t elements) {
  constexpr std::int64_t kRing = 32;
  const Cost step = square(stack, elements, Ring::kZ2k32) + truncation(elements, 12, kRing);
  return truncation(elements, stack.exp_squarings, kRing) +
         sequential(step, static_cast<double>(stack.exp_squarings)) +
         correlated_message(elements, kRing, kRing);
}

// fxp_base.cc, reciprocal_goldschmidt_positive: normalization to [1/2, 1) by the leading bit,
// iterations.
Cost reciprocal_of_positive(const Stack& stack, std::int64_t elements) {
  return prefix_or(stack, elements) +
         packed_bits_to_arithmetic(stack, elements, 2 * kFractionBits) +
         sequential(scaled_product(stack, elements), 5) + scaled_square(stack, elements);
}

// SHAFT (NDSS 2025; approximations.py of its repository, method "ode"): x cut to [-4, 12] by two
// ReLU side by side, a step's share of it, and so many times y += (x - sum(x y)) y. The first y is
// 1 / S, which is public, so that its two products are truncations alone.
Cost constant_round_softmax(const Stack& stack, std::int64_t live) {
  const Cost step = sequential(scaled_product(stack, live), 2);
  return relu(stack, 2 * live) + sequential(truncation(stack, live), 3) +
         sequential(step, static_cast<double>(stack.softmax_steps - 1));
}

// x / 2 (1 + erf(x / sqrt(2))): two products with public numbers, which end in a truncation.
Cost erf_gelu(const Stack& stack, std::int64_t elements) {
  return sequential(truncation(stack, elements), 2) + error_function(stack, elements) +
         scaled_product(stack, elements);
}

}  // namespace

Cost relu(const Stack& stack, std::int64_t elements) {
  // The sign of x, which is bit b - 1 of its shares modulo 2^b whenever |x| < 2^(b-1-f): cutting
  // shares down is local, so a bound on what is compared narrows the comparison. SPU takes b = 64;
  // OpenBumbleBee narrows exp's clip in this way (clip_bits), nobody the other ones.
  return comparison(stack, elements, stack.comparison_bits) + multiplexer(stack, elements);
}

Cost gelu(const Stack& stack, std::int64_t elements) {
  switch (stack.gelu) {
    case Gelu::kSegment:
      return segment_gelu(stack, elements);
    case Gelu::kPiecewise:
      return piecewise_gelu(stack, elements);
    case Gelu::kErf:
      return erf_gelu(stack, elements);
    case Gelu::kErfc:
      return erfc_gelu(stack, elements);
    case Gelu::kTanh:
      break;
  }
  return tanh_gelu(stack, elements);
}

// fxp_approx.cc, tanh_chebyshev: two clamps, a fifth of x, its square, the eight odd polynomials
// after the first, and their sum.
Cost hyperbolic_tangent(const Stack& stack, std::int64_t elements) {
  return sequential(relu(stack, elements), 2) + truncation(stack, elements) +
         scaled_square(stack, elements) + sequential(scaled_product(stack, elements), 8) +
         truncation(stack, elements);
}

// fxp_approx.cc, f_erf, which `jax.lax.erf` calls: of y = |x| the polynomial of degree 4 of
// Abramowitz and Stegun's equation 7.1.27 (y^2, then y^3 and y^4 side by side), its fourth power,
// 1 - 1 / that; 1 from y = 3 on, and the sign again.
Cost error_function(const Stack& stack, std::int64_t elements) {
  return magnitude(stack, elements) + scaled_product(stack, elements) +
         scaled_product(stack, 2 * elements) + truncation(stack, elements) +
         sequential(scaled_square(stack, elements), 2) + reciprocal_of_positive(stack, elements) +
         sequential(relu(stack, elements), 2);
}

Cost exponential(const Stack& stack, std::int64_t elements) {
  // fxp_approx.cc, exp_taylor: (1 + x / 2^t)^(2^t). SPU's language-model examples put 0 below -14,
  // where exp underflows the fraction (flax_llama7b.py, hack_softmax).
  Cost cost;
  if (stack.exp_clip) {
    cost += comparison(stack, elements, stack.clip_bits) + multiplexer(stack, elements);
  }
  if (stack.exp_ring_bits == RingBits::k32) {
    return cost + squarings_in_ring_32(stack, elements);
  }
  return cost + truncation(stack, elements, stack.exp_squarings) +
         sequential(scaled_square(stack, elements), static_cast<double>(stack.exp_squarings));
}

Cost logistic(const Stack& stack, std::int64_t elements) {
  // fxp_approx.cc, f_sigmoid by default (sigmoid_real). exp is of either sign, so that nothing
  // clips it and Z_2^32 has no room for it.
  Stack plain = stack;
  plain.exp_clip = false;
  plain.exp_ring_bits = RingBits::k64;
  return exponential(plain, elements) + reciprocal(stack, elements);
}

Cost reciprocal(const Stack& stack, std::int64_t elements) {
  // fxp_base.cc, reciprocal_goldschmidt: the sign comes off and is put back.
  return magnitude(stack, elements) + reciprocal_of_positive(stack, elements) +
         product(stack, elements);
}

Cost reciprocal_square_root(const Stack& stack, std::int64_t elements) {
  // fxp_approx.cc, rsqrt_np2, rsqrt_init_guess and rsqrt_comp: normalization to u, a polynomial of
  // degree 4, and 2^(-e/2) from the leading bit's position. Of the powers u^3 and u^4 are one
  // product, u and u^2 side by side times u^2 (fxp_base.cc, polynomial).
  return prefix_or(stack, elements) +
         packed_bits_to_arithmetic(stack, elements, 2 * kFractionBits) +
         sequential(scaled_product(stack, elements), 2) + scaled_product(stack, 2 * elements) +
         truncation(stack, elements) + bit_to_arithmetic(stack, elements) +
         packed_bits_to_arithmetic(stack, elements, kFractionBits) + product(stack, elements) +
         scaled_product(stack, elements);
}

Cost softmax(const Stack& stack, const SoftmaxShape& shape) {
  if (stack.softmax_steps > 0) return constant_round_softmax(stack, shape.live);
  Cost cost;
  if (!stack.static_max) {
    cost += row_maximum(stack, shape);
  }
  if (stack.extra_score_truncation) {
    cost += truncation(stack, shape.live);
  }
  cost += exponential(stack, shape.live);
  // One reciprocal per row needs SPU's compiler option enable_optimize_denominator_with_broadcast.
  cost += reciprocal(stack, stack.broadcast_reciprocal ? shape.rows : shape.live);
  return cost + scaled_product(stack, shape.live);
}

Cost weight_scaling(const Stack& stack, std::int64_t elements) {
  return stack.private_weights ? private_product(stack, elements) + truncation(stack, elements)
                               : scaled_product(stack, elements);
}

Cost shared_product(const Stack& stack, std::int64_t elements) {
  return scaled_product(stack, elements);
}

Cost embedding(const Stack& stack, const EmbeddingShape& shape) {
  const MatmulShape product = {shape.tokens, shape.vocab_size, shape.width};
  const ShareProtocol* shares = share_protocol(stack);
  if (stack.client_one_hot) {
    const Cost whole = weight_matmul(stack, product, Slices::kInner, shape.opened);
    if (!shares) return whole;
    return shares->sharing(element_count({shape.tokens, shape.vocab_size}, "one-hot"), kClient) +
           whole;
  }
  // Stock SPU compares each token with every index, then multiplies the one-hot row by the table
  // (hlo/indexing.cc, SecretDynamicSliceImpl). Where the table is private the row becomes
  // arithmetic shares twice: the macro that calls that product evaluates its arguments once for
  // the trace and once for the call (api.cc, mmul_sv; between two parties, 8 bytes per index).
  const auto stock_row = [&] {
    return equality(stack, shape.vocab_size, stack.one_hot_bits) +
           sequential(bit_to_arithmetic(stack, shape.vocab_size), stack.private_weights ? 2 : 1) +
           matmul(stack, {1, shape.vocab_size, shape.width}, weight_factor(stack));
  };
  Cost token =
      shares ? shares->table_row(shape.tokens, shape.vocab_size, shape.width) : stock_row();
  Cost wrapped;
  if (stack.program_steps) {
    // JAX counts negative indices from the end, all tokens at once; SPU clamps the table's row and
    // column of each token from below and from above.
    token += sequential(comparison(stack, 2) + multiplexer(stack, 2), 2);
    wrapped = comparison(stack, shape.tokens) + multiplexer(stack, shape.tokens);
  }
  if (shares && stack.private_weights)
    wrapped += shares->sharing(element_count({shape.vocab_size, shape.width}, "table"), kServer);
  return wrapped + sequential(token, static_cast<double>(shape.tokens));
}

Cost argmax(const Stack& stack, std::int64_t elements, std::int64_t rows) {
  // A tree over values and indices. JAX's reducer, as SPU compiles it, also tests each node for NaN
  // (as x != x), for ties and for the smaller index; OpenBumbleBee's README replaces it by the one
  // comparison that picks value and index.
  const auto nodes = [&](std::int64_t count) {
    const Cost picks = sequential(multiplexer(stack, count), 2);
    if (!stack.argmax_ties) return comparison(stack, count) + picks;
    const Cost tests =
        sequential(comparison(stack, count), 2) + sequential(equality(stack, count, kRingBits), 2);
    if (const ShareProtocol* shares = share_protocol(stack))
      return tests + shares->argmax_picks(count);
    return tests + picks + sequential(bitwise_and(stack, count, 1), 3);
  };
  Cost cost;
  for (const std::int64_t pairs : tree_pairs(elements))
    cost += nodes(element_count({rows, pairs}, "argmax"));
  // Along its first dimension a reduction ends with its initial value (pphlo_executor.cc): that of
  // a single row.
  if (rows > 1) return cost;
  const Cost last = nodes(rows);
  return cost + (stack.program_steps ? last : with_rounds(last, 0));
}

}  // namespace aero::mpc

// The one-pass softmax that also yields the entropy; the mathematics of both operators.
//
// Scores here are in units of log 2: s = log2(e) (scale / t) q . k, so that weights are powers of
// two. With m the maximum so far, x = s - m <= 0 and e = 2^x, a row needs only
//
//   l = sum e,   U = sum e x,   and whatever else is summed with weights e (the output row).
//
// When the maximum rises from m to m', with delta = m - m' and a = 2^delta,
//
//   l <- a l,   U <- a U + delta l,   (output <- a output),
//
// because every x falls by -delta. With the new l the product is 0 where a is, however large delta.
// At the end P = e / l and, in nats,
//
//   entropy = -sum P ln P = ln l - ln2 U / l,      logsumexp = ln2 m + ln l.
//
// Both terms of the entropy are nonnegative, since the maximum itself contributes e = 1 to l, so no
// digits cancel; logsumexp - E[s] would subtract two large numbers and can come out negative.
//
// Backward, with D_i = dO_i . O_i, incoming gradients gE and gL of entropy and logsumexp, and
// z = ln P + entropy = ln2 x + w where w = entropy - ln l (so sum_j P z = 0):
//
//   dS = P (dP - gE z - (D - gL))                          (gradient of the scores in nats)
//   dt = -(1/t) (sum_j dS z + (logsumexp - entropy) gL)
//
// The forward pass keeps m, l and w per row: P and z follow from them without a logarithm, and to
// more digits than from logsumexp, which at t = 0.01 has lost four bits to its size.
// z is centred, so an error in D (rounded O) drops out of dt.
#pragma once

namespace aero::kernels {

// Internal linkage: the CPU compiles this header once per instruction set, and a shared copy of an
// inline function could hold instructions that the machine lacks.
namespace {

inline constexpr double kLn2 = 0.693147180559945309417232121458;
inline constexpr double kLog2E = 1.44269504088896340735992468100;

/// Score of a key that is not seen, and the maximum of a row that has seen nothing yet. Finite, as
/// 0 * inf and inf - inf are the two ways to NaN, and apart, so that 2^(masked - empty) is 0.
/// Scores between -kEmptyMaximum and kEmptyMaximum are told from both, and no difference overflows.
template <class Real>
inline constexpr Real kEmptyMaximum = sizeof(Real) == 4 ? Real(-0x1p126) : Real(-0x1p1022);
template <class Real>
inline constexpr Real kMaskedScore = 2 * kEmptyMaximum<Real>;

/// Running state of one row, or of a vector of rows. Value: float, double or a vector of them.
template <class Value>
struct OnlineSoftmax {
  Value maximum;    ///< m
  Value sum;        ///< l
  Value score_sum;  ///< U

  /// Raises the maximum and returns the factor a that rescales everything summed so far.
  template <class Exp2>
  constexpr Value raise_maximum(Value maximum_now, Exp2 exp2) {
    const Value factor = rescale(maximum - maximum_now, exp2);
    maximum = maximum_now;
    return factor;
  }

  /// The same of the sums alone, the maximum having risen by -delta.
  template <class Exp2>
  constexpr Value rescale(Value delta, Exp2 exp2) {
    const Value factor = exp2(delta);
    sum = factor * sum;
    score_sum = factor * score_sum + delta * sum;
    return factor;
  }

  /// A first key of its own score; one of -inf is none. A score that is no number makes the sum
  /// NaN, even if no other key follows.
  constexpr void begin_with(Value score) {
    const auto is_key = !(score <= maximum);
    maximum = is_key ? score : maximum;
    sum = is_key ? score - score + 1 : Value{};
    score_sum = Value{};
  }

  /// Whether a first key of that score has all the weight.
  constexpr auto is_only(Value score) const {
    const Value keys = maximum == score ? sum : Value{};
    return (score_sum == 0 ? keys : Value{}) == 1;
  }

  /// Adds a key with x = score - maximum and weight = 2^x.
  constexpr void add(Value x, Value weight) {
    sum += weight;
    score_sum += weight * x;
  }
};

/// The values that a finished row, or a vector of rows, is reduced to.
template <class Value>
struct RowResult {
  Value entropy;
  Value logsumexp;
  Value saved_maximum;  ///< m, 0 for a row that saw no key
  Value saved_sum;      ///< l, 0 for a row that saw no key, or whose sink alone has weight
  Value saved_offset;   ///< w = entropy - ln l, 0 for a row that saw no key
};

/// `top` is the maximum in nats, `log_sum` ln(sum); both are ignored for a row that saw no key.
template <class Real, class Value>
constexpr RowResult<Value> finish_row(Value maximum, Value sum, Value score_sum, Value log_sum,
                                      Value top) {
  constexpr Real ln2 = static_cast<Real>(kLn2), infinity = static_cast<Real>(__builtin_inf());
  const Value zero{}, offset = -ln2 * (score_sum / sum);
  const auto is_empty = sum == 0;
  return {is_empty ? zero : log_sum + offset, is_empty ? zero - infinity : top + log_sum,
          is_empty ? zero : maximum, sum, is_empty ? zero : offset};
}

/// The same where the maximum is in units of log 2.
template <class Real, class Value>
constexpr RowResult<Value> finish_row(const OnlineSoftmax<Value>& state, Value log_sum) {
  return finish_row<Real>(state.maximum, state.sum, state.score_sum, log_sum,
                          static_cast<Real>(kLn2) * state.maximum);
}

}  // namespace
}  // namespace aero::kernels

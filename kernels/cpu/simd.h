// Vectors of the width that the file including this one is compiled for, and arithmetic on them.
// This and simd_elements.h are all that knows vector instructions.
//
// Vectors are the compiler's own (operators work on them); intrinsics appear only where a single
// instruction replaces several. Everything has internal linkage: this header is compiled once per
// instruction set, and the linker must not keep one copy for all.
#pragma once

#if defined(__x86_64__)
#pragma GCC diagnostic push
// GCC 12 takes the don't-care operand of its own AVX-512 intrinsics for a mistake (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(AERO_NEON)
#include <arm_neon.h>
#endif

// Whether the machine multiplies pairs of bfloat16.
#if defined(__AVX512BF16__) || (defined(AERO_NEON) && defined(__ARM_FEATURE_BF16))
#define AERO_MULTIPLIES_PAIRS
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#define AERO_INLINE inline __attribute__((always_inline))
#define AERO_LAMBDA_INLINE __attribute__((always_inline))

namespace aero::kernels::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
#if defined(__AVX512F__) || defined(AERO_NEON)
constexpr int kVectorRegisters = 32;
#else
constexpr int kVectorRegisters = 16;
#endif

template <class Real>
struct Simd;

template <>
struct Simd<float> {
  typedef float Vec __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Int __attribute__((vector_size(kVectorBytes)));
  typedef float Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  using Word = int32_t;
};

template <>
struct Simd<double> {
  typedef double Vec __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Int __attribute__((vector_size(kVectorBytes)));
  typedef double Unaligned __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  using Word = int64_t;
};

template <class Real>
using Vec = typename Simd<Real>::Vec;

template <class Real>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Real));

template <class Real>
AERO_INLINE Vec<Real> splat(Real x) {
  // Not {} + x: as -0 + 0 is not -0, that adds before every broadcast, and costs AVX2 a seventh.
  return x - Vec<Real>{};
}

template <class Real>
AERO_INLINE Vec<Real> load(const Real* p) {
  return *reinterpret_cast<const typename Simd<Real>::Unaligned*>(p);
}

template <class Real>
AERO_INLINE void store(Real* p, Vec<Real> x) {
  *reinterpret_cast<typename Simd<Real>::Unaligned*>(p) = x;
}

/// Larger of a and b, lane by lane; NaN where b is NaN.
template <class V>
AERO_INLINE V maximum(V a, V b) {
  return a > b ? a : b;
}
/// Smaller of a and b, lane by lane; NaN where b is NaN.
template <class V>
AERO_INLINE V minimum(V a, V b) {
  return a < b ? a : b;
}
#if defined(__AVX512F__)
// Where an operand is a constant the compiler makes a comparison and a blend of the above.
template <>
AERO_INLINE Vec<float> maximum(Vec<float> a, Vec<float> b) {
  return _mm512_max_ps(a, b);
}
template <>
AERO_INLINE Vec<double> maximum(Vec<double> a, Vec<double> b) {
  return _mm512_max_pd(a, b);
}
template <>
AERO_INLINE Vec<float> minimum(Vec<float> a, Vec<float> b) {
  return _mm512_min_ps(a, b);
}
template <>
AERO_INLINE Vec<double> minimum(Vec<double> a, Vec<double> b) {
  return _mm512_min_pd(a, b);
}
#endif

/// Whether a >= b in every lane, of numbers or of words of 16 bits; not where either is NaN.
template <class V>
AERO_INLINE bool are_all_at_least(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(a[0]) == 2)
    return _mm512_cmpge_epu16_mask((__m512i)a, (__m512i)b) == 0xffffffff;
  else if constexpr (sizeof(a[0]) == 4)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ) == 0xffff;
  else
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GE_OQ) == 0xff;
#else
  const auto is_so = a >= b;
  uint64_t words[sizeof(is_so) / 8], all = ~uint64_t{0};
  __builtin_memcpy(words, &is_so, sizeof(is_so));
  for (const uint64_t word : words) all &= word;
  return all == ~uint64_t{0};
#endif
}

/// |x|, by its sign bit.
template <class V>
AERO_INLINE V absolute(V x) {
  using Real = std::remove_cvref_t<decltype(x[0])>;
  using Int = typename Simd<Real>::Int;
  constexpr auto sign = std::numeric_limits<typename Simd<Real>::Word>::min();
  return (V)((Int)x & ~(Int{} + sign));
}

/// a / b for b from 2^-100 to 2^100. AVX-512 divides sixteen numbers in sixteen cycles: there from
/// an inverse of 14 bits, corrected by what is left over to within one unit in the last place.
template <class V>
AERO_INLINE V quotient(V a, V b) {
  return a / b;
}
#if defined(__AVX512F__)
template <>
AERO_INLINE Vec<float> quotient(Vec<float> a, Vec<float> b) {
  const Vec<float> inverse = _mm512_rcp14_ps(b), near = a * inverse;
  return near + (a - b * near) * inverse;
}
#endif

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using Type = Indices<I...>;
};

template <int Steps, class V, int... I>
AERO_INLINE V rotate_lanes(V x, Indices<I...>) {
  return __builtin_shufflevector(x, x, ((I + Steps) % static_cast<int>(sizeof...(I)))...);
}

/// combine(lane 0, lane 1, ...) in a tree.
template <class Real, int Steps = kLanes<Real> / 2, class Combine>
AERO_INLINE Real over_lanes(Vec<Real> x, const Combine& combine) {
  if constexpr (Steps == 0)
    return x[0];
  else
    return over_lanes<Real, Steps / 2>(
        combine(x, rotate_lanes<Steps>(x, typename MakeIndices<kLanes<Real>>::Type{})), combine);
}

template <class Real>
AERO_INLINE Real sum_of_lanes(Vec<Real> x) {
  Real sum = 0;
  for (int i = 0; i < kLanes<Real>; ++i) sum += x[i];
  return sum;
}

/// 0, 1, 2, ... per lane.
template <class Real>
AERO_INLINE typename Simd<Real>::Int lane_index() {
  typename Simd<Real>::Int index{};
  for (int i = 0; i < kLanes<Real>; ++i) index[i] = i;
  return index;
}

// --- powers of two ------------------------------------------------------------------------------

// 2^f on [0, 1) as 1 + f p(f): minimax in relative error with the constant term fixed, so that
// 2^0 is exactly 1 and an entropy never comes out below 0. Relative error 8.3e-8 at degree 5
// (degree 4: 2e-6, which the accuracy rule for entropies does not admit), 3.2e-18 at degree 11.
AERO_INLINE Vec<float> exp2_fraction(Vec<float> f) {
  Vec<float> p = f * 0.00186713078055f + 0.00901702853944f;
  p = p * f + 0.0557999146735f;
  p = p * f + 0.240164449592f;
  p = p * f + 0.693151311872f;
  return p * f + 1.0f;
}

AERO_INLINE Vec<double> exp2_fraction(Vec<double> f) {
  Vec<double> p = f * 6.2634673414122548845e-10 + 6.5595287100525955536e-9;
  p = p * f + 1.0253212568469058463e-7;
  p = p * f + 1.320836727312407611e-6;
  p = p * f + 1.5253175056687262534e-5;
  p = p * f + 1.5403512309580850202e-4;
  p = p * f + 1.3333558629567883129e-3;
  p = p * f + 9.6181290995507851051e-3;
  p = p * f + 5.5504108665602252433e-2;
  p = p * f + 0.24022650695906330226;
  p = p * f + 0.69314718055994592842;
  return p * f + 1.0;
}

/// 2^x for x <= 0 (any x for which 2^x is finite); 0 where 2^x is below the smallest normal number.
#if defined(__AVX512DQ__)
AERO_INLINE Vec<float> exp2(Vec<float> x) {
  const Vec<float> fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return _mm512_scalef_ps(exp2_fraction(fraction), x);  // scales by 2^floor(x)
}
AERO_INLINE Vec<double> exp2(Vec<double> x) {
  const Vec<double> fraction = _mm512_reduce_pd(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return _mm512_scalef_pd(exp2_fraction(fraction), x);
}
#else
// Adding and taking away 1.5 * 2^23 rounds to an integer; its low bits are that integer. The lower
// clamp makes the exponent field, hence the power, 0.
template <class V, class Int, class Real>
AERO_INLINE V exp2_by_bits(V x, Real magic, int mantissa_bits, int bias) {
  const V clamped = x < static_cast<Real>(-bias) ? V{} - static_cast<Real>(bias) : x;
  const V rounded = (clamped - static_cast<Real>(0.5)) + magic;
  const V floor = rounded - magic;
  const Int exponent = (Int)rounded - (Int)(V{} + magic) + bias;
  const V power = (V)((exponent < 0 ? Int{} : exponent) << mantissa_bits);
  return exp2_fraction(clamped - floor) * power;
}
AERO_INLINE Vec<float> exp2(Vec<float> x) {
  return exp2_by_bits<Vec<float>, Simd<float>::Int, float>(x, 0x1.8p23f, 23, 127);
}
AERO_INLINE Vec<double> exp2(Vec<double> x) {
  return exp2_by_bits<Vec<double>, Simd<double>::Int, double>(x, 0x1.8p52, 52, 1023);
}
#endif

AERO_INLINE float natural_log(float x) { return __builtin_logf(x); }
AERO_INLINE double natural_log(double x) { return __builtin_log(x); }

/// ln x for normal x > 0, as FDLIBM computes it (e_logf.c: below one unit in the last place): with
/// x = 2^k (1 + f) and s = f / (2 + f), ln(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)); exactly 0 at 1.
/// NaN stays.
AERO_INLINE Vec<float> natural_log(Vec<float> x) {
  using Int = Simd<float>::Int;
  const Int bits = (Int)x;
  const Int exponent = (bits - 0x3f3504f3) >> 23;  // 1 + f from sqrt(1/2) to sqrt(2)
  const Vec<float> f = (Vec<float>)(bits - (exponent << 23)) - 1.0f;
  const Vec<float> k = __builtin_convertvector(exponent, Vec<float>);
  const Vec<float> s = f / (f + 2.0f), z = s * s, w = z * z;
  const Vec<float> odd = w * (w * 0.24279078841f + 0.40000972152f);
  const Vec<float> even = z * (w * 0.28498786688f + 0.66666662693f);
  const Vec<float> half_square = f * f * 0.5f;
  return s * (half_square + (odd + even)) + k * 9.0580006145e-06f - half_square + f +
         k * 6.9313812256e-01f + (x - x);
}
AERO_INLINE Vec<double> natural_log(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = natural_log(x[i]);
  return x;
}

/// tanh x as x (1 + z p(z)) / q(z) with z = x^2 (Eigen's coefficients), within 3.5e-7 of itself;
/// NaN stays. 2^x would lose the digits of small x.
AERO_INLINE Vec<float> quotient_of_tangent(Vec<float> x) {
  x = maximum(splat(-8.01773357391357422f), minimum(splat(8.01773357391357422f), x));
  const Vec<float> z = x * x;
  Vec<float> p = z * 1.394553628e-8f + 2.102733560e-5f;
  Vec<float> q = z * 8.015776984e-7f + 3.326951409e-4f;
  p = p * z + 3.520756727e-3f;
  q = q * z + 2.597254514e-2f;
  p = p * z + 1.340216100e-1f;
  q = q * z + 4.673548340e-1f;
  return quotient(x + z * x * p, q * z + 1.0f);
}

/// tanh of each x, up to 1/2 as x (1 + z p(z)), within 1.5e-7 of itself: few scores under a soft
/// cap are larger. A lane's result depends on nothing beside it.
template <int n>
AERO_INLINE void take_hyperbolic_tangent(Vec<float> (&x)[n]) {
  const Vec<float> limit = splat(0.25f);
  Vec<float> z[n], near[n], largest{};
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    z[i] = x[i] * x[i];
    Vec<float> p = z[i] * 1.7241492e-2f - 5.3045495e-2f;
    p = p * z[i] + 1.3325879e-1f;
    p = p * z[i] - 3.3333144e-1f;
    near[i] = x[i] + z[i] * x[i] * p;
    largest = maximum(z[i], largest);  // never NaN, of which both ways make NaN
  }
  const bool are_near = __builtin_expect(are_all_at_least(limit, largest), 1);
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i)
    x[i] = are_near ? near[i] : z[i] <= limit ? near[i] : quotient_of_tangent(x[i]);
}
template <int n>
AERO_INLINE void take_hyperbolic_tangent(Vec<double> (&x)[n]) {
  for (Vec<double>& each : x)
    for (int i = 0; i < kLanes<double>; ++i) each[i] = __builtin_tanh(each[i]);
}

// --- transposition in registers -----------------------------------------------------------------

constexpr bool is_set(int index, int bit) { return index / bit % 2 == 1; }

template <int Half, class V, int... I>
AERO_INLINE void swap_halves(V& a, V& b, Indices<I...>) {
  constexpr int lanes = sizeof...(I);
  const V low = __builtin_shufflevector(a, b, (is_set(I, Half) ? lanes + I - Half : I)...);
  const V high = __builtin_shufflevector(a, b, (is_set(I, Half) ? lanes + I : I + Half)...);
  a = low;
  b = high;
}

/// rows[i][j] <-> rows[j][i], by exchanging blocks of half the size log2(lanes) times.
template <class Real, int Half = kLanes<Real> / 2>
AERO_INLINE void transpose(Vec<Real> (&rows)[kLanes<Real>]) {
  if constexpr (Half > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<Real>; ++i)
      if (!is_set(i, Half))
        swap_halves<Half>(rows[i], rows[i + Half], typename MakeIndices<kLanes<Real>>::Type{});
    transpose<Real, Half / 2>(rows);
  }
}

/// Sum of the lanes of rows[r], from the first to the last, in lane r: the order of products that
/// are summed one after the other. Uses up `rows`.
template <class Real>
AERO_INLINE Vec<Real> sums_of_rows(Vec<Real> (&rows)[kLanes<Real>]) {
  transpose<Real>(rows);
  Vec<Real> sum = rows[0];
#pragma GCC unroll 16
  for (int n = 1; n < kLanes<Real>; ++n) sum += rows[n];
  return sum;
}

/// The same in a tree, which rounds less.
template <class Real>
AERO_INLINE Vec<Real> sums_of_rows_in_a_tree(Vec<Real> (&rows)[kLanes<Real>]) {
  transpose<Real>(rows);
#pragma GCC unroll 4
  for (int half = kLanes<Real> / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int n = 0; n < half; ++n) rows[n] += rows[n + half];
  return rows[0];
}

}  // namespace
}  // namespace aero::kernels::cpu

// The one file that knows SIMD: vectors of the width the file including it is compiled for.
//
// Vectors are the compiler's own (operators work on them); intrinsics appear only where a single
// instruction replaces several. Everything has internal linkage: this header is compiled once per
// instruction set, and the linker must not keep one copy for all.
#pragma once

#if defined(__x86_64__)
#pragma GCC diagnostic push
// GCC 12 takes the don't-care operand of its own AVX-512 intrinsics for a mistake (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include <cstdint>

#include "kernels/cpu/element.h"

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
         k * 6.9313812256e-01f;
}
AERO_INLINE Vec<double> natural_log(Vec<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = natural_log(x[i]);
  return x;
}

// --- elements of the tensors --------------------------------------------------------------------

typedef uint16_t HalfWords __attribute__((vector_size(kVectorBytes / 2)));
typedef uint16_t UnalignedHalfWords
    __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));

/// One vector of elements, converted.
AERO_INLINE Vec<float> load_elements(const float* p) { return load(p); }
AERO_INLINE Vec<double> load_elements(const double* p) { return load(p); }
AERO_INLINE Vec<float> load_elements(const BFloat16* p) {
  const HalfWords bits = *reinterpret_cast<const UnalignedHalfWords*>(p);
  return (Vec<float>)(__builtin_convertvector(bits, Words) << 16);
}
AERO_INLINE Vec<float> load_elements(const Float16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  Vec<float> x{};
  for (int i = 0; i < kLanes<float>; ++i) x[i] = to_real<float>(p[i]);
  return x;
#endif
}

/// One vector, rounded to nearest even.
AERO_INLINE void store_elements(float* p, Vec<float> x) { store(p, x); }
AERO_INLINE void store_elements(double* p, Vec<double> x) { store(p, x); }
AERO_INLINE void store_elements(BFloat16* p, Vec<float> x) {
#if defined(__AVX512BF16__)
  *reinterpret_cast<UnalignedHalfWords*>(p) = (HalfWords)_mm512_cvtneps_pbh(x);
#else
  const Words bits = (Words)x;
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words narrow = x == x ? rounded : Words{} + 0x7fc0u;
  *reinterpret_cast<UnalignedHalfWords*>(p) = __builtin_convertvector(narrow, HalfWords);
#endif
}
AERO_INLINE void store_elements(Float16* p, Vec<float> x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes<float>; ++i) p[i] = from_real<Float16>(x[i]);
#endif
}

/// store_elements past the caches, to an address aligned to what is stored: otherwise the processor
/// first reads what it is about to overwrite. Call end_streaming before others read.
template <class Element, class V>
AERO_INLINE void stream_elements(Element* p, V x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Element) == 2) {
    alignas(kVectorBytes / 2) Element narrow[kVectorBytes / 4];
    store_elements(narrow, x);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), *reinterpret_cast<const __m256i*>(narrow));
  } else {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)x);
  }
#else
  store_elements(p, x);
#endif
}
AERO_INLINE void end_streaming() {
#if defined(__AVX512F__)
  _mm_sfence();
#endif
}

/// Two neighbouring bfloat16. Where a float stands in an FMA, a pair stands in the bfloat16 dot
/// product (sum + low * low + high * high per lane), so the same loops do twice the work.
struct __attribute__((may_alias)) Pair {
  BFloat16 low, high;
};
typedef uint32_t UnalignedWords __attribute__((vector_size(kVectorBytes), aligned(2), may_alias));

/// One vector of pairs, as they are, for transposition.
AERO_INLINE Vec<float> load_elements(const Pair* p) {
  return (Vec<float>)*reinterpret_cast<const UnalignedWords*>(p);
}
/// Pairs of two vectors of bfloat16.
AERO_INLINE void store_interleaved(Pair* p, const BFloat16* low, const BFloat16* high) {
  const HalfWords a = *reinterpret_cast<const UnalignedHalfWords*>(low);
  const HalfWords b = *reinterpret_cast<const UnalignedHalfWords*>(high);
  *reinterpret_cast<UnalignedWords*>(p) =
      __builtin_convertvector(a, Words) | (__builtin_convertvector(b, Words) << 16);
}

// Operands of the register tiles: vectors to multiply with, a number to broadcast, the product.
template <class Real>
AERO_INLINE Vec<Real> load_operand(const Real* p) {
  return load(p);
}
template <class Real>
AERO_INLINE Vec<Real> splat_operand(const Real* p) {
  return splat(*p);
}
template <class Real>
AERO_INLINE Vec<Real> multiply_add(Vec<Real> a, Vec<Real> b, Vec<Real> sum) {
  return sum + a * b;
}
#if defined(__AVX512BF16__)
AERO_INLINE Words load_operand(const Pair* p) {
  return *reinterpret_cast<const UnalignedWords*>(p);
}
AERO_INLINE Words splat_operand(const Pair* p) {
  uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return Words{} + bits;
}
template <class Real>
AERO_INLINE Vec<float> multiply_add(Words a, Words b, Vec<float> sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
/// Rounds two vectors to bfloat16 and stores them as pairs (low[i], high[i]).
AERO_INLINE void store_pairs(Pair* p, Vec<float> low, Vec<float> high) {
  typedef short Shorts __attribute__((vector_size(64)));
  const Shorts rounded = (Shorts)_mm512_cvtne2ps_pbh(high, low);
  *reinterpret_cast<UnalignedWords*>(p) = (Words)__builtin_shufflevector(
      rounded, rounded, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
      26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#endif

/// The first `count` < kLanes elements, zeros after them.
template <class Real, class Element>
AERO_INLINE Vec<Real> load_some_elements(const Element* p, int64_t count) {
  Element padded[kLanes<Real>] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load_elements(padded);
}

template <class Real, class Element>
AERO_INLINE void store_some_elements(Element* p, Vec<Real> x, int64_t count) {
  Element padded[kLanes<Real>];
  store_elements(padded, x);
  for (int64_t i = 0; i < count; ++i) p[i] = padded[i];
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)
// One instruction, where the loops above cost some fifty cycles: the wide load waits for the narrow
// stores before it.
AERO_INLINE uint32_t first_lanes(int64_t count) {
  return (1u << static_cast<uint32_t>(count)) - 1u;
}

template <>
AERO_INLINE Vec<float> load_some_elements<float, float>(const float* p, int64_t count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(first_lanes(count)), p);
}
template <>
AERO_INLINE Vec<double> load_some_elements<double, double>(const double* p, int64_t count) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(count)), p);
}
template <>
AERO_INLINE Vec<float> load_some_elements<float, BFloat16>(const BFloat16* p, int64_t count) {
  const __m256i bits = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(first_lanes(count)), p);
  return (Vec<float>)(__builtin_convertvector((HalfWords)bits, Words) << 16);
}
template <>
AERO_INLINE Vec<float> load_some_elements<float, Float16>(const Float16* p, int64_t count) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(static_cast<__mmask16>(first_lanes(count)), p));
}
template <>
AERO_INLINE void store_some_elements<float, float>(float* p, Vec<float> x, int64_t count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(first_lanes(count)), x);
}
template <>
AERO_INLINE void store_some_elements<double, double>(double* p, Vec<double> x, int64_t count) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(first_lanes(count)), x);
}
#endif

/// A vector, of which only the first `left` elements exist if that is less; zeros after them.
template <class Real, class Element>
AERO_INLINE Vec<Real> load_part(const Element* p, int64_t left) {
  return left >= kLanes<Real> ? load_elements(p) : load_some_elements<Real>(p, left);
}
template <class Real, class Element>
AERO_INLINE void store_part(Element* p, Vec<Real> x, int64_t left) {
  if (left >= kLanes<Real>)
    store_elements(p, x);
  else
    store_some_elements<Real>(p, x, left);
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

/// Sum of the lanes of rows[r], in a tree, in lane r. Uses up `rows`.
template <class Real>
AERO_INLINE Vec<Real> sums_of_rows(Vec<Real> (&rows)[kLanes<Real>]) {
  transpose<Real>(rows);
#pragma GCC unroll 4
  for (int half = kLanes<Real> / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int n = 0; n < half; ++n) rows[n] += rows[n + half];
  return rows[0];
}

}  // namespace
}  // namespace aero::kernels::cpu

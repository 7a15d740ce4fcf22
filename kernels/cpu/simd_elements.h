// Elements of the tensors as vectors: loads and stores that convert, whole vectors and parts of
// them, and pairs of bfloat16 for the machines that multiply pairs.
#pragma once

#include "kernels/cpu/element.h"
#include "kernels/cpu/simd.h"

namespace aero::kernels::cpu {
namespace {

typedef uint16_t HalfWords __attribute__((vector_size(kVectorBytes / 2)));
typedef uint16_t UnalignedHalfWords
    __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));

/// The same numbers in twice the room.
AERO_INLINE Words widened(HalfWords x) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu16_epi32((__m256i)x);  // which GCC 12 does in halves
#else
  return __builtin_convertvector(x, Words);
#endif
}

/// One vector of elements, converted.
AERO_INLINE Vec<float> load_elements(const float* p) { return load(p); }
AERO_INLINE Vec<double> load_elements(const double* p) { return load(p); }
AERO_INLINE Vec<float> load_elements(const BFloat16* p) {
  const HalfWords bits = *reinterpret_cast<const UnalignedHalfWords*>(p);
  return (Vec<float>)(widened(bits) << 16);
}
AERO_INLINE Vec<float> load_elements(const Float16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(AERO_NEON)
  return (Vec<float>)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
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
#elif defined(AERO_MULTIPLIES_PAIRS)
  *reinterpret_cast<UnalignedHalfWords*>(p) = (HalfWords)vcvt_bf16_f32((float32x4_t)x);
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
#elif defined(AERO_NEON)
  vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#else
  for (int i = 0; i < kLanes<float>; ++i) p[i] = from_real<Float16>(x[i]);
#endif
}

/// store_elements past the caches, to an address aligned to the size of the store: otherwise the
/// processor first reads what it is about to overwrite. Call end_streaming before others read.
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
  *reinterpret_cast<UnalignedWords*>(p) = widened(a) | (widened(b) << 16);
}
/// The first and the second of each pair.
AERO_INLINE Vec<float> low_of_pairs(Vec<float> pairs) { return (Vec<float>)((Words)pairs << 16); }
AERO_INLINE Vec<float> high_of_pairs(Vec<float> pairs) {
  return (Vec<float>)((Words)pairs & 0xffff0000u);
}
/// The bits of bfloat16, two to a pair.
typedef uint16_t PairBits __attribute__((vector_size(kVectorBytes)));
/// Those of a number, rounded towards zero.
AERO_INLINE uint16_t bfloat16_bits(float x) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, x) >> 16u);
}
/// Pairs of two vectors of bfloat16, given as floats.
AERO_INLINE Vec<float> pairs_of(Vec<float> low, Vec<float> high) {
  return (Vec<float>)(((Words)low >> 16) | (Words)high);
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
#if defined(AERO_MULTIPLIES_PAIRS)
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
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
  return (Vec<float>)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
#endif
}
/// Rounds two vectors to bfloat16 and stores them as pairs (low[i], high[i]).
AERO_INLINE void store_pairs(Pair* p, Vec<float> low, Vec<float> high) {
#if defined(__AVX512BF16__)
  typedef short Shorts __attribute__((vector_size(64)));
  const Shorts rounded = (Shorts)_mm512_cvtne2ps_pbh(high, low);
  *reinterpret_cast<UnalignedWords*>(p) = (Words)__builtin_shufflevector(
      rounded, rounded, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10,
      26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#else
  BFloat16 rounded[2][kLanes<float>];
  store_elements(rounded[0], low);
  store_elements(rounded[1], high);
  store_interleaved(p, rounded[0], rounded[1]);
#endif
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
  return (Vec<float>)(widened((HalfWords)bits) << 16);
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

}  // namespace
}  // namespace aero::kernels::cpu

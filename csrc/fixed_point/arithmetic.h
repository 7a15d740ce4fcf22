// Fixed-point numbers in Z_2^64 or Z_2^32 with the truncations, products and comparisons of SPU's
// Cheetah protocol, bit by bit. The two parties' shares never appear: what they add to a result is
// drawn from a seeded generator.
#pragma once

#include <bit>
#include <cstdint>

namespace aero::fixed_point {

// An element of Z_2^64 in two's complement. Elements of Z_2^32 are kept sign-extended. Unsigned, so
// that wrapping around is defined.
using Ring = std::uint64_t;

inline bool is_negative(Ring value) { return (value >> 63U) != 0; }

// floor(x / 2^bits): an arithmetic shift by way of the unsigned x + 2^63.
inline Ring shifted_right(Ring value, unsigned bits) {
  constexpr Ring kSign = Ring{1} << 63U;
  return ((value + kSign) >> bits) - (kSign >> bits);
}

// How a product gets rid of its f extra fraction bits.
// floor: arithmetic shift, the deterministic part of Cheetah's truncation.
// nearest: rounded half up, as SPU's plaintext reference protocol does (ref2k.cc, Ref2kTruncS).
// shares: each party shifts its own share, and one of them rounds its result to even
// (truncate_prot.cc, TruncateProtocol::Compute). The lost carry is worth -1, the rounding +1.
enum class Truncation : std::uint8_t { kFloor, kNearest, kShares };

struct Settings {
  unsigned fraction_bits = 18;  // f
  Truncation truncation = Truncation::kFloor;
  bool one_bit_product_error = false;  // products may be off by one before they are truncated
  std::uint64_t seed = 0;              // of the shares' random error
};

// The operations on one element. Not thread-safe: the generator has a state.
class Arithmetic {
 public:
  explicit Arithmetic(const Settings& settings) : settings_(settings), state_(settings.seed) {}

  unsigned fraction_bits() const { return settings_.fraction_bits; }
  unsigned ring_bits() const { return ring_bits_; }

  // encoding.cc, encodeToRing: x 2^f rounded towards zero; NaN is 0, and beyond +-2^(k-2) it stays
  // at that bound.
  Ring encode(double value) const;
  double decode(Ring value) const;

  Ring wrap(Ring value) const {
    constexpr Ring kSign = Ring{1} << 31U;
    return ring_bits_ == 64 ? value : ((value + kSign) & 0xffffffffU) - kSign;
  }

  // x / 2^bits for 0 <= bits < 64. In shares mode, with the client's share uniform: the carry out
  // of the low bits is lost where its low part exceeds that of x, and its result is odd half the
  // time.
  Ring truncate(Ring value, unsigned bits) {
    const Ring floor = shifted_right(value, bits);
    if (settings_.truncation == Truncation::kFloor || bits == 0) return floor;
    if (settings_.truncation == Truncation::kNearest)
      return wrap(floor + ((value >> (bits - 1)) & 1U));
    const Ring low_bits = (Ring{1} << bits) - 1;
    const Ring random = next_random();
    const Ring lost_carry = (random & low_bits) > (value & low_bits) ? 1 : 0;
    return wrap(floor - lost_carry + (random >> 63U));
  }

  // a b without truncation. A product of shares whose plaintext modulus has 141 bits (three primes
  // of 47) decrypts to x y + e y 2^64 / P with |e| <= 1/2 and |y| <= 2^63, that is to within 2^-15
  // of x y, so that rounding errs by one with at most that probability, in each of two such
  // products (cheetah_mul.cc, EncodeArray and ModulusDownRNS). The bound itself is used.
  Ring raw_product(Ring a, Ring b) {
    Ring product = wrap(a * b);
    if (settings_.one_bit_product_error) {
      const Ring random = next_random();
      if ((random & 0x7fffU) == 0)
        product = wrap(product + ((random >> 63U) != 0 ? Ring{1} : ~Ring{0}));
      if (((random >> 15U) & 0x7fffU) == 0)
        product = wrap(product + (((random >> 62U) & 1U) != 0 ? Ring{1} : ~Ring{0}));
    }
    return product;
  }

  // fxp_base.cc, f_mul: a b / 2^f.
  Ring product(Ring a, Ring b) { return truncate(raw_product(a, b), settings_.fraction_bits); }

  // A factor that both parties know: no message, hence no one-bit error, then a truncation.
  Ring scaled(Ring a, Ring constant) {
    return truncate(wrap(a * constant), settings_.fraction_bits);
  }

  // x < y on the upper `bits` of x - y; what is dropped is dropped from each share (OpenBumbleBee,
  // alg.cc, batch_less_ap). All bits: exact.
  bool less(Ring x, Ring y, unsigned bits = 64) {
    const Ring difference = wrap(x - y);
    if (bits >= ring_bits_) return is_negative(difference);
    const unsigned dropped = ring_bits_ - bits;
    Ring kept = shifted_right(difference, dropped);
    if (settings_.truncation == Truncation::kShares) {
      const Ring low_bits = (Ring{1} << dropped) - 1;
      kept -= (next_random() & low_bits) > (difference & low_bits) ? 1 : 0;
    }
    return is_negative(kept);
  }

  // The same parties in Z_2^32 with another number of fraction bits; `adopt` takes the generator's
  // state back.
  Arithmetic in_ring_32(unsigned fraction_bits) const {
    Arithmetic other(*this);
    other.ring_bits_ = 32;
    other.settings_.fraction_bits = fraction_bits;
    return other;
  }
  void adopt(const Arithmetic& other) { state_ = other.state_; }

  // splitmix64 (Steele, Lea and Flood, 2014).
  std::uint64_t next_random() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111eb;
    return z ^ (z >> 31U);
  }

 private:
  Settings settings_;
  unsigned ring_bits_ = 64;
  std::uint64_t state_;
};

// The leading one of x, at place p of 1, 2, ..., mirrored to place bits + 1 - p; 0 for x = 0 and
// beyond `bits`. SPU reverses the low bits of a word that has one bit set and masks the rest away
// (_bitrev and maskNumberOfBits).
inline Ring mirrored_leading_bit(Ring value, unsigned bits) {
  const auto place = static_cast<unsigned>(std::bit_width(value));
  return place == 0 || place > bits ? 0 : Ring{1} << (bits - place);
}

}  // namespace aero::fixed_point

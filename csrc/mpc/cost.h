// The cost of a protocol, as a vector that adds up over operations, layers and parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace aero::mpc {

// SPU's rank 0 holds the input (the client), rank 1 the weights (the server), as in its GPT-2
// example (examples/python/ml/flax_gpt2).
inline constexpr std::size_t kClient = 0;
inline constexpr std::size_t kServer = 1;

// The quotient rounded up, as batches and blocks are counted.
constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

// Counts are doubles because averages over many runs (Ferret extensions, cached Beaver triples) are
// not whole numbers; whole numbers are exact up to this bound, and beyond it `checked` throws.
inline constexpr double kMaxExactCount = 9007199254740992.0;  // 2^53

// `for_each_count` explains each count.
struct Cost {
  std::array<double, 2> sent_bytes{};  // by client and server; no byte is counted twice
  double rounds = 0;
  double elementwise_ciphertexts = 0;
  double ct_pt_products = 0;
  double plaintext_encodings = 0;
  double automorphisms = 0;
  double ots = 0;
  double helper_bytes = 0;
  double dealer_bytes = 0;

  // By all parties.
  double comm_bytes() const { return sent_bytes[kClient] + sent_bytes[kServer] + helper_bytes; }

  Cost& operator+=(const Cost& other);
  bool operator==(const Cost&) const = default;
};

struct CountName {
  std::string_view name;  // as Python and reports have it
  bool whole;             // of whole operations; averages over many runs are not
  std::string_view meaning;
};

// Calls visit(CountName, count of the first cost, of the second, ...) for every count. The one list
// of them: sums, checks and the Python side go through it.
template <class Visit, class... Costs>
constexpr void for_each_count(Visit&& visit, Costs&... costs) {
  visit(CountName{"client_bytes", false,
                  "Sent by the client, the owner of the input (SPU's rank 0)."},
        costs.sent_bytes[kClient]...);
  visit(CountName{"server_bytes", false, "Sent by the server, the owner of the weights (rank 1)."},
        costs.sent_bytes[kServer]...);
  visit(CountName{"rounds", true,
                  "One-way messages that must be waited for; a round trip is two rounds."},
        costs.rounds...);
  visit(CountName{"elementwise_ciphertexts", false,
                  "Homomorphic evaluations in elementwise products. Cached Beaver triples count by "
                  "their share of a ciphertext."},
        costs.elementwise_ciphertexts...);
  visit(CountName{"ct_pt_products", true, "Ciphertext x plaintext products in matrix products."},
        costs.ct_pt_products...);
  visit(CountName{"plaintext_encodings", true, "Plaintexts encoded for them."},
        costs.plaintext_encodings...);
  visit(CountName{"automorphisms", true, "Spent on packing their responses."},
        costs.automorphisms...);
  visit(CountName{"ots", true, "Oblivious transfers."}, costs.ots...);
  visit(CountName{"helper_bytes", false, "Sent by the third party, of a stack that has one."},
        costs.helper_bytes...);
  visit(
      CountName{"dealer_bytes", false,
                "Sent by the dealer, of a stack that has one, before the inputs are known; no part "
                "of `comm_bytes`."},
      costs.dealer_bytes...);
}

Cost operator+(Cost left, const Cost& right);

// Copies that run at once: everything but the rounds multiplies.
Cost parallel(const Cost& one, double copies);

// Copies one after the other: everything multiplies.
Cost sequential(const Cost& one, double copies);

// The same work with another number of rounds (work spread over the levels of a tree, say).
Cost with_rounds(Cost cost, double rounds);

// An operation's cost as it enters a sum: bytes rounded to whole ones, so that sums in any order
// are equal, every count below 2^53. Throws std::invalid_argument naming `what` when one is not.
Cost checked(const Cost& cost, std::string_view what);

// Product of sizes; throws std::invalid_argument naming `what` where it exceeds 2^53.
std::int64_t element_count(std::initializer_list<std::int64_t> sizes, std::string_view what);

}  // namespace aero::mpc

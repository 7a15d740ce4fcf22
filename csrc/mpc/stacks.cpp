#include "csrc/mpc/stacks.h"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "csrc/spec/nearest_word.h"

namespace aero::mpc {
namespace {

using spec::FieldValue;

using Member = std::variant<bool Stack::*, std::int64_t Stack::*, Gelu Stack::*, Silu Stack::*,
                            AbsorbFfn Stack::*, RingBits Stack::*>;

struct Field {
  std::string_view name;
  Member member;
  std::string_view unit;  // of numbers
  std::string_view meaning;
  std::int64_t smallest = 0;  // of integers
  std::int64_t largest = 0;
};

constexpr std::int64_t kMebibyte = 1048576;
constexpr std::int64_t kMaxAttentionBlock = 16777216;
constexpr std::int64_t kMaxTileBytes = 1024 * 1024 * 1024 * kMebibyte;  // 2^50

// One table drives reading, setting, checking and listing. exp_squarings shifts an 18-bit fraction;
// clip_bits must hold -14, comparison_bits the sign and the 18 fraction bits.
constexpr std::array kFields{
    Field{"mul_share", &Stack::mul_share, "",
          "products of shares by SPU's MulShare of September 2024 instead of two OLE"},
    Field{"one_bit_product_error", &Stack::one_bit_product_error, "",
          "a product may be off by one in its last bit"},
    Field{"private_weights", &Stack::private_weights, "",
          "the server knows the weights in the clear; else they are secret-shared"},
    Field{"exp_squarings", &Stack::exp_squarings, "squarings", "t of exp(x) = (1 + x / 2^t)^(2^t)",
          1, 17},
    Field{"gelu", &Stack::gelu, "",
          "how GELU is computed: SPU's tanh form, OpenBumbleBee's segment in Z_2^32 or piecewise "
          "polynomials in Z_2^64, or exactly, by SPU's erf or as jax.nn.gelu's erfc"},
    Field{"silu", &Stack::silu, "",
          "how SiLU is computed: as x/2 (1 + tanh(x/2)), or as jax.nn.silu's x times the logistic "
          "function"},
    Field{"exp_clip", &Stack::exp_clip, "", "one comparison per score sets exp to 0 below -14"},
    Field{"clip_bits", &Stack::clip_bits, "bits", "the width of that comparison", 5, 64},
    Field{"one_hot_bits", &Stack::one_hot_bits, "bits",
          "the width of the embedding's equality test", 1, 64},
    Field{"program_steps", &Stack::program_steps, "",
          "the steps that JAX adds are counted: clamped indices and first values"},
    Field{"matmul_tile_bytes", &Stack::matmul_tile_bytes, "bytes",
          "matrix products are cut into tiles of at most this size", kMebibyte, kMaxTileBytes},
    Field{"batch_heads", &Stack::batch_heads, "",
          "the products of all heads at once instead of one head after the other"},
    Field{"extra_score_truncation", &Stack::extra_score_truncation, "",
          "one more truncation per score, which the paper's bytes show"},
    Field{"broadcast_reciprocal", &Stack::broadcast_reciprocal, "",
          "one reciprocal per softmax row; else one per element"},
    Field{"cached_weights", &Stack::cached_weights, "",
          "only the first pass of a session opens the weights under their masks"},
    Field{"largest_product", &Stack::largest_product, "weights",
          "products with more weights are computed in slices, for memory; 0: none is", 0,
          kMaxTileBytes},
    Field{"softmax_steps", &Stack::softmax_steps, "steps",
          "of SHAFT's softmax, without maximum and exp; 0: by exp", 0, 1024},
    Field{"client_one_hot", &Stack::client_one_hot, "", "the client makes its one-hot rows itself"},
    Field{"last_token_head", &Stack::last_token_head, "",
          "the head computes the last position only"},
    Field{"last_layer_one_row", &Stack::last_layer_one_row, "",
          "the last layer and the head compute only the positions that outputs read"},
    Field{"causal_skip", &Stack::causal_skip, "", "no work for scores above the diagonal"},
    Field{"attention_block", &Stack::attention_block, "tokens",
          "causal attention goes by blocks of so many queries, each of which reads only the keys "
          "that "
          "one of its queries sees; 0: all queries at once",
          0, kMaxAttentionBlock},
    Field{"absorb_ffn", &Stack::absorb_ffn, "",
          "linear FFNs are multiplied into the neighbouring weights before inference"},
    Field{"exp_ring_bits", &Stack::exp_ring_bits, "bits",
          "the ring of exp's squarings; Z_2^32 leaves 12 fraction bits"},
    Field{"static_max", &Stack::static_max, "",
          "a static bound replaces the maximum of each row of scores"},
    Field{"secret_temperature", &Stack::secret_temperature, "",
          "temperatures [H, T] are secret; else public"},
    Field{"secret_shape_factors", &Stack::secret_shape_factors, "",
          "the factors of shaped attention are secret; else public"},
    Field{"cheapest_layouts", &Stack::cheapest_layouts, "",
          "blocks and padding are chosen by bytes instead of by SPU's rules"},
    Field{"share_ciphertexts", &Stack::share_ciphertexts, "",
          "with one query row per head, heads share ciphertexts; needs batch_heads"},
    Field{"fill_ciphertexts", &Stack::fill_ciphertexts, "",
          "vectors are cut at whole ciphertexts, and cached triples take the rest"},
    Field{"pack_triangle", &Stack::pack_triangle, "",
          "responses of Q K^T hold live scores only; needs causal_skip"},
    Field{"fold_score_scale", &Stack::fold_score_scale, "",
          "1/sqrt(d_k) is multiplied into the query weights before inference"},
    Field{"comparison_bits", &Stack::comparison_bits, "bits",
          "the width of comparisons in ReLU, clamps and maxima", 20, 64},
    Field{"argmax_ties", &Stack::argmax_ties, "",
          "the first of equally large logits wins; else any of them"},
    Field{"truncations", &Stack::truncations, "", "truncations are counted; else none is, a bound"},
    Field{"argmax", &Stack::argmax, "", "the argmax of one row of logits is counted"},
    Field{"setup", &Stack::setup, "", "the OT set-up and Galois keys of a session are counted"},
    Field{"threads", &Stack::threads, "threads",
          "how many each party has; OT instances are made per thread", 1, 4096},
};

constexpr std::array<std::string_view, 5> kGeluWords{"tanh", "segment", "piecewise", "erf", "erfc"};
constexpr std::array<std::string_view, 2> kSiluWords{"tanh", "logistic"};

std::span<const std::string_view> words_of(Gelu) { return kGeluWords; }
std::span<const std::string_view> words_of(Silu) { return kSiluWords; }

[[noreturn]] void fail(const Field& field, const std::string& expected, const FieldValue& value) {
  throw std::invalid_argument("simulate: " + std::string(field.name) + " must be " + expected +
                              ", got " + spec::shown(value));
}

bool flag_from(const Field& field, const FieldValue& value) {
  const auto* flag = std::get_if<bool>(&value);
  if (flag == nullptr) fail(field, "True or False", value);
  return *flag;
}

std::int64_t integer_from(const Field& field, const FieldValue& value) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr || *number < field.smallest || *number > field.largest)
    fail(field,
         "an integer from " + std::to_string(field.smallest) + " to " +
             std::to_string(field.largest),
         value);
  return *number;
}

template <class Form>
Form form_from(const Field& field, const FieldValue& value) {
  const std::span<const std::string_view> words = words_of(Form{});
  const auto* word = std::get_if<std::string>(&value);
  const auto found = word ? std::find(words.begin(), words.end(), *word) : words.end();
  if (found == words.end()) fail(field, spec::quoted_list(words), value);
  return static_cast<Form>(found - words.begin());
}

AbsorbFfn absorb_ffn_from(const Field& field, const FieldValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? AbsorbFfn::kYes : AbsorbFfn::kNo;
  if (value == FieldValue{std::string("where_legal")}) return AbsorbFfn::kWhereLegal;
  fail(field, "True, False or \"where_legal\"", value);
}

RingBits ring_bits_from(const Field& field, const FieldValue& value) {
  if (value == FieldValue{std::int64_t{32}}) return RingBits::k32;
  if (value == FieldValue{std::int64_t{64}}) return RingBits::k64;
  fail(field, "32 or 64", value);
}

void set_field(Stack& stack, const Field& field, const FieldValue& value) {
  std::visit(
      [&](auto member) {
        using Content = std::decay_t<decltype(stack.*member)>;
        if constexpr (std::is_same_v<Content, bool>)
          stack.*member = flag_from(field, value);
        else if constexpr (std::is_same_v<Content, Gelu> || std::is_same_v<Content, Silu>)
          stack.*member = form_from<Content>(field, value);
        else if constexpr (std::is_same_v<Content, AbsorbFfn>)
          stack.*member = absorb_ffn_from(field, value);
        else if constexpr (std::is_same_v<Content, RingBits>)
          stack.*member = ring_bits_from(field, value);
        else
          stack.*member = integer_from(field, value);
      },
      field.member);
}

FieldValue get_field(const Stack& stack, const Field& field) {
  return std::visit(
      [&](auto member) -> FieldValue {
        using Content = std::decay_t<decltype(stack.*member)>;
        if constexpr (std::is_same_v<Content, Gelu> || std::is_same_v<Content, Silu>)
          return std::string(words_of(Content{})[static_cast<std::size_t>(stack.*member)]);
        else if constexpr (std::is_same_v<Content, AbsorbFfn>)
          return stack.*member == AbsorbFfn::kWhereLegal
                     ? FieldValue{std::string("where_legal")}
                     : FieldValue{stack.*member == AbsorbFfn::kYes};
        else if constexpr (std::is_same_v<Content, RingBits>)
          return static_cast<std::int64_t>(stack.*member);
        else
          return stack.*member;
      },
      field.member);
}

// Two ways to spare what a causal mask hides.
void check_attention(const Stack& stack) {
  if (stack.attention_block > 0 && stack.causal_skip)
    throw std::invalid_argument(
        "simulate: attention_block must be 0 with causal_skip, which spares single scores instead "
        "of blocks, got " +
        std::to_string(stack.attention_block));
}

// What only ciphertexts, oblivious transfers and rings of other widths make cheaper.
void check_protocol(const Stack& stack) {
  if (stack.cached_weights && stack.protocol != Protocol::kSemi2k)
    throw std::invalid_argument(
        "simulate: cached_weights must be False but on spu-semi2k; no other protocol opens "
        "weights");
  if (stack.protocol == Protocol::kCheetah) return;
  const Stack cheetah;
  const auto check = [&](bool is_default, std::string_view field) {
    if (!is_default)
      throw std::invalid_argument(
          "simulate: " + std::string(field) +
          " must be left alone on spu-semi2k, spu-aby3 and spu-securenn, which have none of "
          "Cheetah's ciphertexts and oblivious transfers; take a stack of Cheetah, such as "
          "spu-0.9.5");
  };
  for (const auto& [member, name] : {std::pair{&Stack::mul_share, "mul_share"},
                                     {&Stack::one_bit_product_error, "one_bit_product_error"},
                                     {&Stack::cheapest_layouts, "cheapest_layouts"},
                                     {&Stack::share_ciphertexts, "share_ciphertexts"},
                                     {&Stack::fill_ciphertexts, "fill_ciphertexts"},
                                     {&Stack::pack_triangle, "pack_triangle"}})
    check(!(stack.*member), name);
  for (const auto& [member, name] : {std::pair{&Stack::clip_bits, "clip_bits"},
                                     {&Stack::one_hot_bits, "one_hot_bits"},
                                     {&Stack::comparison_bits, "comparison_bits"}})
    check(stack.*member == cheetah.*member, name);
  check(stack.exp_ring_bits == RingBits::k64, "exp_ring_bits");
  check(stack.gelu == Gelu::kTanh || stack.gelu == Gelu::kErf || stack.gelu == Gelu::kErfc, "gelu");
}

}  // namespace

std::vector<spec::FieldDocument> field_documents() {
  std::vector<spec::FieldDocument> documents;
  documents.reserve(kFields.size());
  for (const Field& field : kFields) documents.push_back({field.name, field.unit, field.meaning});
  return documents;
}

spec::FieldValues field_values(const Stack& stack) {
  spec::FieldValues values;
  for (const Field& field : kFields) values.emplace_back(field.name, get_field(stack, field));
  return values;
}

std::string_view trust(const Stack& stack) {
  switch (stack.protocol) {
    case Protocol::kSemi2k:
      return "two parties and a dealer who colludes with neither, all semi-honest";
    case Protocol::kAby3:
      return "three parties, semi-honest, no two of whom collude, no dealer";
    case Protocol::kSecureNn:
      return "three parties, semi-honest, no two of whom collude, the third of whom only helps";
    case Protocol::kCheetah:
      break;
  }
  return "two parties, semi-honest, no dealer";
}

Stack with_fields(Stack stack, const spec::FieldValues& values) {
  for (const auto& [name, value] : values) {
    const auto* field = std::find_if(kFields.begin(), kFields.end(),
                                     [&](const Field& f) { return f.name == name; });
    if (field == kFields.end())
      throw std::invalid_argument(
          "simulate: a stack has no field " + spec::quoted(name) + "; did you mean " +
          spec::quoted(spec::nearest_word(name, spec::names_of(kFields))) + "?");
    set_field(stack, *field, value);
  }
  check_protocol(stack);
  check_attention(stack);
  return stack;
}

}  // namespace aero::mpc

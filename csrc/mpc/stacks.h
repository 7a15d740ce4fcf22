// Protocol stacks: which variant of each protocol a private inference runs, and which optimizations
// are switched on. Five published and three optimized stacks; every field can be set by name, and
// the prices of operations can be quoted instead of derived (prices.h).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "csrc/mpc/prices.h"
#include "csrc/spec/fields.h"

namespace aero::mpc {

// Cheetah: two parties, homomorphic encryption and oblivious transfer. SEMI2K: two parties with a
// dealer of correlated randomness. ABY3: three parties, no two of whom collude.
enum class Protocol : std::uint8_t { kCheetah, kSemi2k, kAby3, kSecureNn };

// tanh: SPU's lowering of the tanh form. segment: OpenBumbleBee's kernel in Z_2^32. piecewise: its
// degree-3 / degree-6 polynomials in Z_2^64. erf: the exact one, as JAX compiles it for SPU.
enum class Gelu : std::uint8_t { kTanh, kSegment, kPiecewise, kErf, kErfc };

// x / 2 (1 + tanh(x / 2)), or x times the logistic function, as jax.nn.silu writes it.
enum class Silu : std::uint8_t { kTanh, kLogistic };

// Whether the linear FFNs are multiplied into the neighbouring weights before inference.
enum class AbsorbFfn : std::uint8_t { kNo, kWhereLegal, kYes };

// The ring an operation computes in.
enum class RingBits : std::uint8_t { k32 = 32, k64 = 64 };

// The default member values are the stack `spu-2024`.
struct Stack {
  Protocol protocol = Protocol::kCheetah;  // no field: the named stack has it

  // Protocols.
  bool mul_share = false;              // SPU's MulShare (Sep 2024) instead of two OLE per product
  bool one_bit_product_error = false;  // a product may be off by one in the last bit
  bool private_weights = false;        // known to the server in the clear, else secret-shared
  std::int64_t exp_squarings = 8;      // t of exp(x) = (1 + x / 2^t)^(2^t)
  Gelu gelu = Gelu::kTanh;
  Silu silu = Silu::kTanh;
  bool exp_clip = true;                        // exp is 0 below -14
  std::int64_t clip_bits = 64;                 // width of that comparison
  std::int64_t one_hot_bits = 64;              // width of the embedding's equality test
  bool program_steps = false;                  // steps that JAX adds: clamped indices, first values
  std::int64_t matmul_tile_bytes = 268435456;  // 256 MiB; 1 GiB in OpenBumbleBee
  bool batch_heads = false;                    // heads at once instead of one after the other
  bool extra_score_truncation = true;          // the paper's bytes show one more per score
  bool broadcast_reciprocal = true;  // one reciprocal per softmax row, else one per element
  bool cached_weights = false;       // SEMI2K: only the first pass opens them under their masks
  std::int64_t largest_product = 0;  // weights of it; larger ones are sliced; 0: none is
  std::int64_t softmax_steps = 0;    // of SHAFT's constant-round softmax; 0: by exp

  // Optimizations by the network's owner.
  bool client_one_hot = false;       // the client makes its one-hot rows itself
  bool last_token_head = false;      // LM head on the last position only
  bool last_layer_one_row = false;   // last layer and LM head for the last position only
  bool causal_skip = false;          // no work for scores above the diagonal
  std::int64_t attention_block = 0;  // queries that go together in causal attention; 0: all
  AbsorbFfn absorb_ffn = AbsorbFfn::kNo;
  RingBits exp_ring_bits = RingBits::k64;  // exp's squarings in Z_2^32 have 12 fraction bits
  bool static_max = false;                 // a static bound replaces the maximum of each row
  bool secret_temperature = false;         // t in R^{H x T} is multiplied in secret, else public
  bool secret_shape_factors = false;       // as well as beta of shaped attention
  bool cheapest_layouts = false;           // blocks and padding by bytes, not by SPU's rules
  bool share_ciphertexts = false;          // one query row: heads share them; with batch_heads
  bool fill_ciphertexts = false;      // vectors are cut at whole ciphertexts, the rest is a triple
  bool pack_triangle = false;         // responses of Q K^T hold live scores only; with causal_skip
  bool fold_score_scale = false;      // 1/sqrt(d_k) is multiplied into W_Q before inference
  std::int64_t comparison_bits = 64;  // width of the comparisons in ReLU, clamps and maxima
  bool argmax_ties = true;            // the first of equal maxima, else any of them
  bool truncations = true;            // are counted; else they are free, a bound

  // The counts.
  bool argmax = true;  // of one row of logits
  bool setup = true;   // OT set-up and Galois keys, once per session
  std::int64_t threads = 32;

  Prices prices{};  // not a field: stack descriptions set it

  bool operator==(const Stack&) const = default;
};

// `spu-2024`, `spu-0.9.5`, `openbumblebee`, `spu-semi2k`, `spu-aby3`.
std::vector<std::string_view> stack_names();

// `aero-optimized`, `aero-optimized-generation`, `aero-approximate`: `spu-2024` with optimizations.
std::vector<std::string_view> optimized_stack_names();

// A published or optimized stack. Throws std::invalid_argument listing the names.
Stack stack(std::string_view name);

// Every field with its value, in the order of the struct; enums are their words.
spec::FieldValues field_values(const Stack& stack);

// Every field with its unit and meaning, in the same order.
std::vector<spec::FieldDocument> field_documents();

// Whom the stack's users trust: parties, how they behave, a dealer.
std::string_view trust(const Stack& stack);

// A checked copy with some fields changed. Throws std::invalid_argument naming the field, its range
// and the given value.
Stack with_fields(Stack stack, const spec::FieldValues& values);

}  // namespace aero::mpc

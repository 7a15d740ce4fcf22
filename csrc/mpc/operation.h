// One private forward pass as a graph of operations on secret values: the computation, on which
// shapes and in which order, but not how. Additions and products with public constants are local
// and free; they appear only as edges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "csrc/mpc/functions.h"
#include "csrc/mpc/protocols/composites.h"
#include "csrc/mpc/protocols/matmul.h"
#include "csrc/mpc/protocols/top_k.h"

namespace aero::mpc {

// Kinds of operations, in the order of a cost report.
enum class Kind : std::uint8_t {
  kQkvProj,
  kQk,
  kSoftmax,
  kPv,
  kFfn,
  kActivation,
  kLayerNorm,
  kEmbed,
  kLmHead,
  kArgmax,
  kSetup,
  kReveal,
};
inline constexpr std::size_t kNumKinds = 12;

// As tables and Python name it: "qkv/proj", "QK", "softmax", ...
std::string_view kind_name(Kind kind);

// Throws std::invalid_argument listing the names.
Kind kind_of(std::string_view name);

struct SessionSetup {
  bool operator==(const SessionSetup&) const = default;
};

// Activations times a weight, then the truncation of the outputs.
struct WeightProduct {
  MatmulShape shape;
  bool opened = false;  // the weight, by an earlier pass

  bool operator==(const WeightProduct&) const = default;
};

// Which factor or result of a product per head is lower triangular under a causal mask.
enum class Triangle : std::uint8_t { kNone, kResult, kLeftFactor };

// Shares times shares for each head, then the truncation of the outputs.
struct HeadProduct {
  std::int64_t heads = 0;
  MatmulShape shape;  // of one head
  Triangle triangle = Triangle::kNone;

  bool operator==(const HeadProduct&) const = default;
};

struct Truncation {
  std::int64_t elements = 0;

  bool operator==(const Truncation&) const = default;
};

// Every element times a weight, then the truncation.
struct WeightScaling {
  std::int64_t elements = 0;

  bool operator==(const WeightScaling&) const = default;
};

// Shares times shares, element by element, then the truncation.
struct SharedProduct {
  std::int64_t elements = 0;

  bool operator==(const SharedProduct&) const = default;
};

// A norm over rows of channels, or a function of elements, of width 1.
struct FunctionShape {
  const PricedFunction* function = nullptr;
  std::int64_t rows = 0;
  std::int64_t width = 1;

  bool operator==(const FunctionShape&) const = default;
};

struct Argmax {
  std::int64_t elements = 0;  // of one row
  std::int64_t rows = 1;      // at once

  bool operator==(const Argmax&) const = default;
};

// The server sends its shares to the client, or all parties theirs to each other.
struct Opening {
  std::int64_t elements = 0;
  bool to_all = false;

  bool operator==(const Opening&) const = default;
};

using OperationShape = std::variant<SessionSetup, EmbeddingShape, WeightProduct, HeadProduct,
                                    Truncation, WeightScaling, SharedProduct, SoftmaxShape,
                                    FunctionShape, Argmax, TopKShape, Opening>;

inline constexpr std::int64_t kOutsideLayers = -1;

struct Operation {
  std::string name;  // "queries, keys, values"
  std::int64_t layer = kOutsideLayers;
  Kind kind = Kind::kSetup;
  OperationShape shape;
  std::vector<std::size_t> inputs;  // operations that must be finished, all earlier in the graph
  std::string_view written;         // as which lines of a program, where the shape does not tell

  bool operator==(const Operation&) const = default;
};

// Operations in an order in which they can run one after the other.
using OperationGraph = std::vector<Operation>;

// "T x d x 3d" as numbers: "128x768x2304", "12 x 128x64x128".
std::string shape_text(const OperationShape& shape);

}  // namespace aero::mpc

#include "csrc/mpc/operation.h"

#include <array>
#include <initializer_list>
#include <stdexcept>

#include "csrc/spec/nearest_word.h"

namespace aero::mpc {
namespace {

constexpr std::array<std::string_view, kNumKinds> kKindNames{
    "qkv/proj",  "QK",    "softmax", "PV",     "ffn",   "act",
    "layernorm", "embed", "lm head", "argmax", "setup", "reveal"};

std::string by(std::initializer_list<std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) {
    if (!text.empty()) text += 'x';
    text += std::to_string(size);
  }
  return text;
}

struct ShapeText {
  std::string operator()(const SessionSetup&) const { return ""; }
  std::string operator()(const EmbeddingShape& s) const {
    return by({s.tokens, s.vocab_size, s.width});
  }
  std::string operator()(const WeightProduct& s) const {
    return by({s.shape.rows, s.shape.inner, s.shape.columns});
  }
  std::string operator()(const HeadProduct& s) const {
    return std::to_string(s.heads) + " x " + by({s.shape.rows, s.shape.inner, s.shape.columns});
  }
  std::string operator()(const SoftmaxShape& s) const { return by({s.rows, s.columns}); }
  std::string operator()(const TopKShape& s) const { return by({s.rows, s.columns, s.chosen}); }
  std::string operator()(const FunctionShape& s) const {
    return s.function->of_rows ? by({s.rows, s.width}) : by({s.rows});
  }
  template <class Elements>
  std::string operator()(const Elements& s) const {
    return std::to_string(s.elements);
  }
};

}  // namespace

std::string_view kind_name(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

Kind kind_of(std::string_view name) {
  for (std::size_t kind = 0; kind < kNumKinds; ++kind)
    if (kKindNames[kind] == name) return static_cast<Kind>(kind);
  throw std::invalid_argument("network: part must be " + spec::quoted_list(kKindNames) + ", got " +
                              spec::quoted(name));
}

std::string shape_text(const OperationShape& shape) { return std::visit(ShapeText{}, shape); }

}  // namespace aero::mpc

// The fields of an ArchitectureSpec by name: reading, checked changing, dependent fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "csrc/spec/architecture_spec.h"

namespace aero::spec {

// Sizes beyond these are typing errors; the bounds keep every count below in 128 bits.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 65536;
inline constexpr std::int64_t kMaxWidth = 16'777'216;    // d, d_k, F
inline constexpr std::int64_t kMaxContext = 16'777'216;  // T
inline constexpr std::int64_t kMaxVocabulary = 268'435'456;

// Choices are their words.
using FieldValue = std::variant<bool, std::int64_t, double, std::string>;

// A value as error messages and Python show it: True, 12, 0.25, "gelu".
std::string shown(const FieldValue& value);

using FieldValues = std::vector<std::pair<std::string, FieldValue>>;

// A field as help and manual describe it; only numbers have a unit.
struct FieldDocument {
  std::string_view name;
  std::string_view unit;
  std::string_view meaning;
};

// In the order of declaration.
std::vector<std::string_view> field_names();

std::vector<FieldDocument> field_documents();

// Those that no label says and no norm brings with it.
std::vector<std::string_view> size_names();

// Of numbered parts, those that say which kind of one a network has, "none" without.
std::vector<std::string_view> part_names();

// Whether a label says it. This and field_value throw std::invalid_argument with the nearest name
// if there is no such field.
bool is_of_label(std::string_view name);
FieldValue field_value(const ArchitectureSpec& spec, std::string_view name);

FieldValues field_values(const ArchitectureSpec& spec);

// A checked copy with some fields changed. A field that is not named and holds its default follows
// the others: head_dim = width / num_heads, hidden_width = 4 width, final_norm by norm (layer for
// LayerNorm and shaped attention, foldable for foldable norms), parallel_residual for Pythia and
// shaped attention. normalized_layers returns to "ffn" where the FFN has no weight or spectral
// norm, the number of a numbered part to 1 without that part. Throws std::invalid_argument naming
// the field, the allowed values and the given one.
ArchitectureSpec with_fields(const ArchitectureSpec& spec, const FieldValues& values);

// All fields at once, as field_values gives them; a missing one is an error, but for those that
// files of earlier versions lack, which hold their defaults.
ArchitectureSpec from_fields(const FieldValues& values);

// Throws std::invalid_argument if a field is out of range or two contradict each other.
void validate(const ArchitectureSpec& spec);

// The defaults that with_fields keeps.
FinalNorm default_final_norm(const ArchitectureSpec& spec);
bool default_parallel_residual(const ArchitectureSpec& spec);

}  // namespace aero::spec

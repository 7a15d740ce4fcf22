#include "csrc/spec/fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <stdexcept>
#include <type_traits>

#include "csrc/spec/label_words.h"
#include "csrc/spec/nearest_word.h"

namespace aero::spec {
namespace {

using Spec = ArchitectureSpec;

using Member = std::variant<std::int64_t Spec::*, bool Spec::*, double Spec::*, Family Spec::*,
                            FinalNorm Spec::*, std::int64_t Label::*, bool Label::*, Norm Label::*,
                            FeedForward Label::*, NormalizedLayers Label::*, Convolution Label::*,
                            Temperature Label::*>;

struct Field {
  std::string_view name;
  Member member;
  std::string_view unit;  // of numbers
  std::string_view meaning;
  std::int64_t smallest = 0;  // of integers, whose largest is more than 0
  std::int64_t largest = 0;
  bool is_later = false;  // older files lack it and mean its default
};

const std::array kFields{
    Field{"family", &Spec::family, "", "whose blocks and positions the network has"},
    Field{"num_layers", &Spec::num_layers, "layers", "L, the blocks of the network", 1, kMaxLayers},
    Field{"num_heads", &Spec::num_heads, "heads", "H, the attention heads of a layer", 1,
          kMaxHeads},
    Field{"head_dim", &Spec::head_dim, "channels", "d_k, the width of a head; need not be d / H", 1,
          kMaxWidth},
    Field{"width", &Spec::width, "channels", "d, the width of the stream between layers", 1,
          kMaxWidth},
    Field{"hidden_width", &Spec::hidden_width, "channels",
          "F, the inner width of an FFN of two layers", 1, kMaxWidth},
    Field{"context_length", &Spec::context_length, "tokens", "T, the longest sequence", 1,
          kMaxContext},
    Field{"vocab_size", &Spec::vocab_size, "tokens", "V, the rows of the embedding table", 1,
          kMaxVocabulary},
    Field{"tied_embeddings", &Spec::tied_embeddings, "",
          "whether the head is the transposed token embedding"},
    Field{"rotary_fraction", &Spec::rotary_fraction, "share of d_k",
          "the channels that rotate with the position; 0 learns absolute positions instead"},
    Field{"parallel_residual", &Spec::parallel_residual, "",
          "whether attention and FFN read the same stream"},
    Field{"window", &Spec::window, "tokens",
          "how many tokens a query sees, itself and those before it; 0: all", 0, kMaxContext, true},
    Field{"norm", &Spec::norm, "", "the normalization before attention and before the FFN"},
    Field{"final_norm", &Spec::final_norm, "", "the normalization before the head"},
    Field{"ffn", &Spec::ffn, "", "the kind of feed-forward network"},
    Field{"normalized_layers", &Spec::normalized_layers, "",
          "the layers under weight or spectral normalization"},
    Field{"convolution", &Spec::convolution, "",
          "the causal convolution along the tokens, beside the FFN, before it, or before attention",
          0, 0, true},
    Field{"convolution_taps", &Spec::convolution_taps, "tokens",
          "how many tokens a convolution reads, its own included; 1 without one", 1, kMaxTaps,
          true},
    Field{"num_pruned_ffns", &Spec::num_pruned_ffns, "layers",
          "K, how many of the deepest FFNs are absent", 0, kMaxLayers},
    Field{"temperature", &Spec::temperature, "", "the learned temperatures of the softmax"},
    Field{"entropy_regularized", &Spec::entropy_regularized, "",
          "whether the network trains with the entropy penalty"},
    Field{"shaped_attention", &Spec::shaped_attention, "",
          "whether attention is shaped as in He and Hofmann (2024), the SOTA labels"},
};

template <class Content>
std::string_view name_of(Content Label::* member) {
  return std::find_if(kFields.begin(), kFields.end(),
                      [&](const Field& field) {
                        const auto* found = std::get_if<Content Label::*>(&field.member);
                        return found != nullptr && *found == member;
                      })
      ->name;
}

// The shortest decimal that reads back as the same number.
std::string shown_number(double value) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.begin(), digits.end(), value).ptr;
  return {digits.begin(), end};
}

[[noreturn]] void fail(std::string_view field, const std::string& expected,
                       const std::string& got) {
  throw std::invalid_argument("ArchitectureSpec: " + std::string(field) + " must be " + expected +
                              ", got " + got);
}

const Field& find_field(std::string_view name) {
  const auto* found =
      std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == name; });
  if (found != kFields.end()) return *found;
  const auto names = field_names();
  const std::string hint = suggestion(name, names);
  throw std::invalid_argument("ArchitectureSpec: there is no field " + quoted(name) +
                              (hint.empty() ? "; there are " + quoted_list(names, " and ") : hint));
}

template <class Enum>
Enum enum_from(const Field& field, const FieldValue& value) {
  constexpr auto words = words_of(Enum{});
  const auto* word = std::get_if<std::string>(&value);
  const auto* found = word ? std::find(words.begin(), words.end(), *word) : words.end();
  if (found != words.end()) return static_cast<Enum>(found - words.begin());
  fail(field.name, quoted_list(words), shown(value) + (word ? suggestion(*word, words) : ""));
}

std::string range_of(const Field& field) {
  return "an integer from " + std::to_string(field.smallest) + " to " +
         std::to_string(field.largest);
}

void set_field(Spec& spec, const Field& field, const FieldValue& value) {
  std::visit(
      [&](auto member) {
        using Content = std::decay_t<decltype(spec.*member)>;
        if constexpr (std::is_enum_v<Content>) {
          spec.*member = enum_from<Content>(field, value);
        } else if constexpr (std::is_same_v<Content, double>) {
          if (const auto* number = std::get_if<double>(&value))
            spec.*member = *number;
          else if (const auto* whole = std::get_if<std::int64_t>(&value))
            spec.*member = static_cast<double>(*whole);
          else
            fail(field.name, "a number from 0 to 1", shown(value));
        } else if (const auto* content = std::get_if<Content>(&value)) {
          spec.*member = *content;
        } else {
          fail(field.name, std::is_same_v<Content, bool> ? "True or False" : range_of(field),
               shown(value));
        }
      },
      field.member);
}

FieldValue get_field(const Spec& spec, const Field& field) {
  return std::visit(
      [&](auto member) -> FieldValue {
        using Content = std::decay_t<decltype(spec.*member)>;
        if constexpr (std::is_enum_v<Content>)
          return std::string(name_of(spec.*member));
        else
          return spec.*member;
      },
      field.member);
}

void check_ranges(const Spec& spec) {
  for (const Field& field : kFields)
    if (field.largest > 0) {
      const std::int64_t value = std::get<std::int64_t>(get_field(spec, field));
      if (value < field.smallest || value > field.largest)
        fail(field.name, range_of(field), std::to_string(value));
    }
}

// Fields that are not named and held their default before hold it again.
void follow_defaults(const Spec& before, Spec& spec, const FieldValues& values) {
  const auto named = [&](std::string_view name) {
    return std::any_of(values.begin(), values.end(), [&](auto& v) { return v.first == name; });
  };
  if (!named("head_dim") && before.width == before.num_heads * before.head_dim) {
    if (spec.width % spec.num_heads != 0)
      fail("num_heads",
           "a divisor of width = " + std::to_string(spec.width) + " unless head_dim is given",
           std::to_string(spec.num_heads));
    spec.head_dim = spec.width / spec.num_heads;
  }
  if (!named("hidden_width") && before.hidden_width == 4 * before.width)
    spec.hidden_width = 4 * spec.width;
  if (!named("final_norm") && before.final_norm == default_final_norm(before))
    spec.final_norm = default_final_norm(spec);
  if (!named("parallel_residual") && before.parallel_residual == default_parallel_residual(before))
    spec.parallel_residual = default_parallel_residual(spec);
  if (!named("normalized_layers") && !is_normalized(spec.ffn))
    spec.normalized_layers = NormalizedLayers::kFfn;
  for_each_numbered([&](const auto& part) {
    if (!named(name_of(part.number)) && !part.is_in(spec)) spec.*part.number = 1;
  });
}

void check_numbered(const Spec& spec) {
  for_each_numbered([&](const auto& part) {
    const std::string kind(name_of(part.kind));
    const bool is_in = part.is_in(spec);
    if (is_in != (spec.*part.number > 1))
      fail(name_of(part.number),
           is_in ? "an integer from 2 to " + std::to_string(part.largest) + " with a " + kind
                 : "1 where " + kind + " is \"none\"",
           std::to_string(spec.*part.number));
    if (is_in && spec.shaped_attention)
      fail(kind, "\"none\" for shaped attention (SOTA labels)", quoted(name_of(spec.*part.kind)));
  });
}

void check_window(const Spec& spec) {
  if (spec.window == 0) return;
  if (spec.shaped_attention)
    fail("window", "0 for shaped attention (SOTA labels)", std::to_string(spec.window));
  if (spec.window < spec.convolution_taps)
    fail("window", "0 or at least convolution_taps = " + std::to_string(spec.convolution_taps),
         std::to_string(spec.window));
}

}  // namespace

std::string shown(const FieldValue& value) {
  return std::visit(
      [](const auto& content) -> std::string {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, bool>) return content ? "True" : "False";
        if constexpr (std::is_same_v<Content, std::int64_t>) return std::to_string(content);
        if constexpr (std::is_same_v<Content, double>) return shown_number(content);
        if constexpr (std::is_same_v<Content, std::string>) return quoted(content);
      },
      value);
}

FinalNorm default_final_norm(const Spec& spec) {
  if (spec.shaped_attention || spec.norm == Norm::kLayer) return FinalNorm::kLayer;
  if (spec.norm == Norm::kDynamicTanh) return FinalNorm::kDynamicTanh;
  if (spec.norm == Norm::kDynamicErf) return FinalNorm::kDynamicErf;
  return spec.norm == Norm::kNone ? FinalNorm::kNone : FinalNorm::kFoldable;
}

bool default_parallel_residual(const Spec& spec) {
  return spec.family == Family::kPythia || spec.shaped_attention;
}

std::vector<std::string_view> field_names() { return names_of(kFields); }

std::vector<FieldDocument> field_documents() {
  std::vector<FieldDocument> documents;
  documents.reserve(kFields.size());
  for (const Field& field : kFields) documents.push_back({field.name, field.unit, field.meaning});
  return documents;
}

std::vector<std::string_view> size_names() {
  std::vector<std::string_view> names = field_names();
  std::erase_if(names, [](std::string_view name) {
    return is_of_label(name) || find_field(name).member == Member{&Spec::final_norm};
  });
  return names;
}

std::vector<std::string_view> part_names() {
  std::vector<std::string_view> names;
  for_each_numbered([&](const auto& part) { names.push_back(name_of(part.kind)); });
  return names;
}

bool is_of_label(std::string_view name) {
  return std::visit([](auto member) { return std::is_invocable_v<decltype(member), Label&>; },
                    find_field(name).member);
}

FieldValue field_value(const Spec& spec, std::string_view name) {
  return get_field(spec, find_field(name));
}

FieldValues field_values(const Spec& spec) {
  FieldValues values;
  for (const Field& field : kFields) values.emplace_back(field.name, get_field(spec, field));
  return values;
}

Spec with_fields(const Spec& spec, const FieldValues& values) {
  Spec changed = spec;
  for (const auto& [name, value] : values) set_field(changed, find_field(name), value);
  check_ranges(changed);
  follow_defaults(spec, changed, values);
  validate(changed);
  return changed;
}

Spec from_fields(const FieldValues& values) {
  Spec spec;
  std::vector<std::string_view> missing;
  for (const Field& field : kFields)
    if (!field.is_later) missing.push_back(field.name);
  for (const auto& [name, value] : values) {
    set_field(spec, find_field(name), value);
    std::erase(missing, name);
  }
  if (!missing.empty())
    throw std::invalid_argument("ArchitectureSpec: missing " + quoted_list(missing, " and "));
  validate(spec);
  return spec;
}

void validate(const Spec& spec) {
  check_ranges(spec);
  if (spec.num_pruned_ffns > spec.num_layers)
    fail("num_pruned_ffns", "an integer from 0 to num_layers = " + std::to_string(spec.num_layers),
         std::to_string(spec.num_pruned_ffns));
  if (!(spec.rotary_fraction >= 0.0 && spec.rotary_fraction <= 1.0))
    fail("rotary_fraction", "a number from 0 to 1", shown_number(spec.rotary_fraction));
  const auto rotating =
      static_cast<std::int64_t>(spec.rotary_fraction * static_cast<double>(spec.head_dim));
  if (spec.rotary_fraction > 0.0 && (rotating == 0 || rotating % 2 != 0))
    fail("rotary_fraction",
         "0, or give an even number of rotating channels of head_dim = " +
             std::to_string(spec.head_dim),
         shown_number(spec.rotary_fraction) + ", which gives " + std::to_string(rotating));
  if (spec.normalized_layers != NormalizedLayers::kFfn && !is_normalized(spec.ffn))
    fail("normalized_layers", "\"ffn\" unless ffn is \"weight_norm\" or \"spectral_norm\"",
         quoted(name_of(spec.normalized_layers)));
  check_numbered(spec);
  check_window(spec);
  if (!spec.shaped_attention) return;
  if (!spec.parallel_residual)
    fail("parallel_residual", "True for shaped attention (SOTA labels)", "False");
  // Without a value projection the heads share out the d channels of the stream.
  if (spec.width % spec.num_heads != 0)
    fail("num_heads",
         "a divisor of width = " + std::to_string(spec.width) +
             " for shaped attention (SOTA labels)",
         std::to_string(spec.num_heads));
}

}  // namespace aero::spec

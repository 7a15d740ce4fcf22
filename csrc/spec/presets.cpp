#include "csrc/spec/presets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <string>

#include "csrc/spec/nearest_word.h"

namespace aero::spec {
namespace {

struct Preset {
  std::string_view name;
  ArchitectureSpec spec;
};

// GPT-2 and Pythia-70M as the paper trains them (T = 128 in its Tables 2 and 4; its other context
// lengths are overrides); mini and tiny train on a CPU in minutes and seconds.
const std::array kPresets{
    Preset{"gpt2", {}},
    Preset{"gpt2-18l", {.num_layers = 18}},
    Preset{"pythia-70m",
           {.family = Family::kPythia,
            .num_layers = 6,
            .num_heads = 8,
            .head_dim = 64,
            .width = 512,
            .hidden_width = 2048,
            .vocab_size = 50304,
            .tied_embeddings = false,
            .rotary_fraction = 0.25,
            .parallel_residual = true}},
    Preset{"mini",
           {.num_layers = 6,
            .num_heads = 4,
            .head_dim = 32,
            .width = 128,
            .hidden_width = 512,
            .vocab_size = 4096}},
    Preset{"tiny",
           {.num_layers = 2,
            .num_heads = 2,
            .head_dim = 16,
            .width = 32,
            .hidden_width = 128,
            .context_length = 32,
            .vocab_size = 256}},
};

constexpr std::array<std::string_view, 9> kLabelFields{"norm",
                                                       "ffn",
                                                       "normalized_layers",
                                                       "convolution",
                                                       "convolution_taps",
                                                       "num_pruned_ffns",
                                                       "temperature",
                                                       "entropy_regularized",
                                                       "shaped_attention"};

// Parts of the names of models of transformers; no label has one.
constexpr std::array<std::string_view, 20> kFamilies{
    "bert",    "bloom",  "cohere",  "deepseek",  "falcon",  "gemma",   "gpt",
    "granite", "llama",  "mistral", "mpt",       "mixtral", "olmo",    "opt",
    "phi",     "pythia", "qwen",    "starcoder", "smol",    "stablelm"};

// People know presets as the names of networks, also with their owner in front: "openai/gpt2".
void refuse_models(std::string_view label) {
  std::string name(label.substr(label.rfind('/') + 1));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Preset& entry : kPresets)
    if (entry.name == name)
      throw std::invalid_argument("label: expected one such as \"SM+LN+G\", got " + quoted(label) +
                                  ", which is a size; give a label and model=" + quoted(name) +
                                  " (a command: 'SM+LN+G' --model " + name + ")");
  for (const std::string_view family : kFamilies)
    if (name.find(family) != std::string::npos)
      throw std::invalid_argument("label: expected one such as \"SM+LN+G\", got " + quoted(label) +
                                  ", which names a model; give the folder with its config.json to "
                                  "`aero cost`, `aero convert` or `aero show`");
}

}  // namespace

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names(kPresets.size());
  std::transform(kPresets.begin(), kPresets.end(), names.begin(), [](auto& p) { return p.name; });
  return names;
}

ArchitectureSpec preset(std::string_view name) {
  for (const Preset& entry : kPresets)
    if (entry.name == name) return entry.spec;
  const auto names = preset_names();
  throw std::invalid_argument("ArchitectureSpec: model must be " + quoted_list(names) + ", got " +
                              quoted(name) + suggestion(name, names));
}

ArchitectureSpec labelled(ArchitectureSpec spec, const Label& label) {
  spec.shaped_attention = label.shaped_attention;
  spec.entropy_regularized = label.entropy_regularized;
  spec.temperature = label.temperature;
  spec.norm = label.norm;
  spec.ffn = label.ffn;
  spec.normalized_layers = label.normalized_layers;
  spec.convolution = label.convolution;
  spec.convolution_taps = label.convolution_taps;
  spec.num_pruned_ffns = label.num_pruned_ffns;
  spec.final_norm = default_final_norm(spec);
  spec.parallel_residual = default_parallel_residual(spec);
  return spec;
}

ArchitectureSpec architecture_from_label(std::string_view label, std::string_view model,
                                         const FieldValues& overrides) {
  refuse_models(label);
  const ArchitectureSpec spec = labelled(preset(model), parse_label(label));
  const auto stated = std::find_if(overrides.begin(), overrides.end(), [](const auto& named) {
    return std::find(kLabelFields.begin(), kLabelFields.end(), named.first) != kLabelFields.end();
  });
  if (stated != overrides.end())
    throw std::invalid_argument("ArchitectureSpec.from_label: " + stated->first +
                                " is stated by the label " + quoted(label) +
                                "; change the label, or use replace(" + stated->first + "=...)");
  return with_fields(spec, overrides);
}

}  // namespace aero::spec

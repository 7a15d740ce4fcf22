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

constexpr ArchitectureSpec gpt2(std::int64_t layers, std::int64_t heads, std::int64_t head_dim = 64,
                                std::int64_t vocab_size = 50257,
                                std::int64_t context_length = 128) {
  ArchitectureSpec spec;
  spec.num_layers = layers;
  spec.num_heads = heads;
  spec.head_dim = head_dim;
  spec.width = heads * head_dim;
  spec.hidden_width = 4 * spec.width;
  spec.vocab_size = vocab_size;
  spec.context_length = context_length;
  return spec;
}

constexpr ArchitectureSpec pythia(std::int64_t layers, std::int64_t heads, std::int64_t width,
                                  std::int64_t vocab_size = 50304) {
  ArchitectureSpec spec = gpt2(layers, heads, width / heads, vocab_size);
  spec.family = Family::kPythia;
  spec.tied_embeddings = false;
  spec.rotary_fraction = 0.25;
  spec.parallel_residual = true;
  return spec;
}

// GPT-2 (Radford et al., 2019, Table 2) and Pythia (arXiv 2304.01373, Table 1) as published, with
// the paper's T = 128; other context lengths are overrides. gpt2-18l is the paper's; mini and tiny
// train on a CPU in minutes and seconds.
constexpr std::array kPresets{
    Preset{"gpt2", gpt2(12, 12)},
    Preset{"gpt2-18l", gpt2(18, 12)},
    Preset{"gpt2-medium", gpt2(24, 16)},
    Preset{"gpt2-large", gpt2(36, 20)},
    Preset{"gpt2-xl", gpt2(48, 25)},
    Preset{"pythia-70m", pythia(6, 8, 512)},
    Preset{"pythia-160m", pythia(12, 12, 768)},
    Preset{"pythia-410m", pythia(24, 16, 1024)},
    Preset{"pythia-1b", pythia(16, 8, 2048)},
    Preset{"pythia-1.4b", pythia(24, 16, 2048)},
    Preset{"pythia-2.8b", pythia(32, 32, 2560)},
    Preset{"pythia-6.9b", pythia(32, 32, 4096, 50432)},
    Preset{"pythia-12b", pythia(36, 40, 5120, 50688)},
    Preset{"mini", gpt2(6, 4, 32, 4096)},
    Preset{"tiny", gpt2(2, 2, 16, 256, 32)},
};

// Parts of the names of models of transformers; no label has one.
constexpr std::array<std::string_view, 20> kFamilies{
    "bert",    "bloom",  "cohere",  "deepseek",  "falcon",  "gemma",   "gpt",
    "granite", "llama",  "mistral", "mpt",       "mixtral", "olmo",    "opt",
    "phi",     "pythia", "qwen",    "starcoder", "smol",    "stablelm"};

void refuse_models(std::string_view label) {
  if (names_a_model(label))
    throw std::invalid_argument("label: expected one such as \"SM+LN+G\", got " + quoted(label) +
                                ", which names a model; give the folder with its config.json to "
                                "`aero cost`, `aero convert` or `aero show` (`hf download NAME "
                                "config.json --local-dir FOLDER` fetches it)");
}

}  // namespace

std::vector<std::string_view> preset_names() { return names_of(kPresets); }

bool names_a_model(std::string_view text) {
  std::string name(text.substr(text.rfind('/') + 1));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(kFamilies.begin(), kFamilies.end(), [&](std::string_view family) {
    return name.find(family) != std::string::npos;
  });
}

ArchitectureSpec preset(std::string_view name) {
  for (const Preset& entry : kPresets)
    if (entry.name == name) return entry.spec;
  const auto names = preset_names();
  throw std::invalid_argument("ArchitectureSpec: model must be " + quoted_list(names) + ", got " +
                              quoted(name) + suggestion(name, names));
}

ArchitectureSpec labelled(ArchitectureSpec spec, const Label& label) {
  static_cast<Label&>(spec) = label;
  spec.final_norm = default_final_norm(spec);
  spec.parallel_residual = default_parallel_residual(spec);
  return spec;
}

ArchitectureSpec architecture_from_label(std::string_view label, std::string_view model,
                                         const FieldValues& overrides) {
  refuse_models(label);
  const ArchitectureSpec spec = labelled(preset(model), parse_label(label));
  const auto stated = std::find_if(overrides.begin(), overrides.end(),
                                   [](const auto& named) { return is_of_label(named.first); });
  if (stated != overrides.end())
    throw std::invalid_argument("ArchitectureSpec.from_label: " + stated->first +
                                " is stated by the label " + quoted(label) +
                                "; change the label, or use replace(" + stated->first + "=...)");
  return with_fields(spec, overrides);
}

}  // namespace aero::spec

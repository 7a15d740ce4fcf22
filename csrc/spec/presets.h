// Model sizes by name, and the network a label describes at such a size.
#pragma once

#include <string_view>
#include <vector>

#include "csrc/spec/architecture_spec.h"
#include "csrc/spec/fields.h"
#include "csrc/spec/label.h"

namespace aero::spec {

std::vector<std::string_view> preset_names();

// Whether a text has a part of a name that models of transformers have, and no label.
bool names_a_model(std::string_view text);

// The preset `SM` network of this name. Throws std::invalid_argument with the nearest name.
ArchitectureSpec preset(std::string_view name);

// The spec with a label's choices, and final_norm and parallel_residual as with_fields defaults
// them.
ArchitectureSpec labelled(ArchitectureSpec spec, const Label& label);

// The label's network at the sizes of a preset, with some sizes and flags changed as with_fields
// does. Fields that the label itself states are errors among the overrides.
ArchitectureSpec architecture_from_label(std::string_view label, std::string_view model = "gpt2",
                                         const FieldValues& overrides = {});

}  // namespace aero::spec

// The networks of labels as descriptions.
#pragma once

#include "csrc/network/network.h"
#include "csrc/spec/architecture_spec.h"

namespace aero::network {

// What a trained network has and its label leaves open; no price depends on it.
struct Details {
  double embedding_scale = 1.0;
  double epsilon = 1e-5;
  double rotary_base = 10000.0;
  bool exact_gelu = false;
};

// Throws std::invalid_argument for a spec out of range.
Network describe(const spec::ArchitectureSpec& spec, const Details& details = {});

}  // namespace aero::network

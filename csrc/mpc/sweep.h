// Totals of many networks on many stacks: the inner loop of `aero cost sweep`, without reports.
#pragma once

#include <string>
#include <vector>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/latency.h"
#include "csrc/mpc/profiles.h"
#include "csrc/mpc/stacks.h"
#include "csrc/spec/architecture_spec.h"
#include "csrc/spec/fields.h"

namespace aero::mpc {

// A field of the network and the values it takes.
struct SweepAxis {
  std::string name;
  std::vector<spec::FieldValue> values;
};

struct Machines {
  NetworkProfile network;
  ComputeProfile compute;
};

// Every network x every combination of the axes' values x every stack, each timed on all machines.
struct Sweep {
  std::vector<spec::ArchitectureSpec> specs;
  std::vector<SweepAxis> axes;
  std::vector<Stack> stacks;
  std::vector<Machines> machines;
};

struct SweepResult {
  Cost total;
  std::vector<Nanoseconds> nanoseconds;  // closed form, one per machine
  std::string error;                     // why there is no such network; the rest is then empty
};

// In the order of loops over specs, axes (the last one fastest) and stacks (innermost). Throws
// std::invalid_argument for more than 10 million combinations.
std::vector<SweepResult> run_sweep(const Sweep& sweep);

}  // namespace aero::mpc

// Which instruction set the CPU kernels run with.
#pragma once

#include <string>
#include <vector>

namespace aero::kernels::cpu {

/// Name of the instruction set in use: "scalar", "avx2", "avx512", "avx512bf16" or "amx", on ARM
/// "scalar", "neon" or "neonbf16". It is the best this machine has, or what the environment
/// variable AERO_CPU_ISA names. Read at every call, so tests may change the variable. Throws
/// std::invalid_argument if the variable holds an unknown name or one that this machine lacks; call
/// it before any parallel loop.
std::string isa_name();

/// Names this machine can run, from the plainest to the best.
std::vector<std::string> available_isa_names();

}  // namespace aero::kernels::cpu

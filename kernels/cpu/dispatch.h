// Which instruction set the CPU kernels run with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aero::kernels::cpu {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// The instruction set in use: the best this machine has, or what the environment variable
/// AERO_CPU_ISA names. Read anew at every call, so tests may change the variable. Throws
/// std::invalid_argument if the variable holds an unknown name or one that this machine lacks; call
/// it before any parallel loop.
Isa isa();

/// Name of `isa()`: "scalar", "avx2", "avx512", "avx512bf16" or "amx".
std::string isa_name();

/// Names this machine can run, from the plainest to the best.
std::vector<std::string> available_isa_names();

}  // namespace aero::kernels::cpu

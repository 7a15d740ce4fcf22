#include "kernels/cpu/dispatch.h"

#include <array>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace aero::kernels::cpu {
namespace {

constexpr std::array kIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "";
}

// Linux gives a process the tile registers when it asks for them, for all its threads at once, and
// refuses where the stack of a signal handler could not hold them
// (Documentation/arch/x86/xstate.rst).
bool may_use_tile_registers() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

// Each set includes the one before it. __builtin_cpu_supports also asks the operating system
// whether it saves the registers.
bool machine_has(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return machine_has(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::kAvx512Bf16:
      return machine_has(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx:
      return machine_has(Isa::kAvx512Bf16) && __builtin_cpu_supports("amx-tile") &&
             __builtin_cpu_supports("amx-bf16") && may_use_tile_registers();
  }
  return false;
#else
  return isa == Isa::kScalar;
#endif
}

Isa best_isa() {
  static const Isa best = [] {
    Isa found = Isa::kScalar;
    for (const Isa isa : kIsas)
      if (machine_has(isa)) found = isa;
    return found;
  }();
  return best;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> available_isa_names() {
  std::vector<std::string> names;
  for (const Isa isa : kIsas)
    if (machine_has(isa)) names.emplace_back(name_of(isa));
  return names;
}

Isa isa() {
  const char* wanted = std::getenv("AERO_CPU_ISA");
  if (!wanted || !*wanted) return best_isa();
  for (const Isa isa : kIsas)
    if (std::string(wanted) == name_of(isa) && machine_has(isa)) return isa;
  std::vector<std::string> allowed(kIsas.size());
  for (size_t i = 0; i < kIsas.size(); ++i) allowed[i] = name_of(kIsas[i]);
  throw std::invalid_argument("AERO_CPU_ISA must be one of " + joined(allowed) +
                              ", of which this machine has " + joined(available_isa_names()) +
                              ", got " + wanted);
}

std::string isa_name() { return name_of(isa()); }

}  // namespace aero::kernels::cpu

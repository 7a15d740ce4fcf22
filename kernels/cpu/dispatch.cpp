#include "kernels/cpu/dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "kernels/cpu/kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace aero::kernels::cpu {
namespace {

struct InstructionSet {
  const char* name;
  bool (*machine_has)();
  const Kernels& (*kernels)();
};

template <const Kernels& kKernels>
const Kernels& table() {
  return kKernels;
}

template <class Params>
void replace(Kernel<Params> (&kernels)[4], const Kernel<Params> (&others)[4]) {
  for (int type = 0; type < 4; ++type)
    if (others[type].run) kernels[type] = others[type];
}
template <class Forward, class Backward>
void replace(BothDirections<Forward, Backward>& kernels,
             const BothDirections<Forward, Backward>& others) {
  replace(kernels.forward, others.forward);
  replace(kernels.backward, others.backward);
}

/// The kernels of the set before, with those in their places that kOthers has.
template <const Kernels& (*kBefore)(), const Kernels& kOthers>
const Kernels& table_over() {
  static const Kernels kernels = [] {
    Kernels all = kBefore();
    replace(all.attention_entropy, kOthers.attention_entropy);
    replace(all.temperature_softmax, kOthers.temperature_softmax);
    replace(all.cross_entropy, kOthers.cross_entropy);
    if (kOthers.scaled_ffn.epilogue) all.scaled_ffn = kOthers.scaled_ffn;
    return all;
  }();
  return kernels;
}

#if defined(__x86_64__)

// Bits of cpuid, for what clang's __builtin_cpu_supports does not know.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & 1u << 29u) != 0;
}
bool has_tile_registers() {
  constexpr unsigned kBf16 = 1u << 22u, kTile = 1u << 24u;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTile) != 0;
}

// __builtin_cpu_supports also asks the operating system whether it saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// Linux gives a process the tile registers when it asks for them, for all its threads at once, and
// refuses where the stack of a signal handler could not hold them
// (Documentation/arch/x86/xstate.rst).
bool may_use_tile_registers() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool has_amx() { return has_avx512bf16() && has_tile_registers() && may_use_tile_registers(); }

constexpr auto table_with_bfloat16 = table_over<table<kAvx512>, kAvx512Bf16>;

#elif defined(__aarch64__)

bool has_neonbf16() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1ul << 14u;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#elif defined(__APPLE__)
  int found = 0;
  size_t bytes = sizeof(found);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &found, &bytes, nullptr, 0) == 0 && found != 0;
#else
  return false;
#endif
}

#endif

// From the plainest to the best.
constexpr InstructionSet kInstructionSets[] = {
    {"scalar", [] { return true; }, table<kScalar>},
#if defined(__x86_64__)
    {"avx2", has_avx2, table<kAvx2>},
    {"avx512", has_avx512, table<kAvx512>},
    {"avx512bf16", has_avx512bf16, table_with_bfloat16},
    {"amx", has_amx, table_over<table_with_bfloat16, kAmx>},
#elif defined(__aarch64__)
    {"neon", [] { return true; }, table<kNeon>},
    {"neonbf16", has_neonbf16, table_over<table<kNeon>, kNeonBf16>},
#endif
};

const InstructionSet& best() {
  static const InstructionSet& found = []() -> const InstructionSet& {
    const InstructionSet* last = kInstructionSets;
    for (const InstructionSet& set : kInstructionSets)
      if (set.machine_has()) last = &set;
    return *last;
  }();
  return found;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const InstructionSet& in_use() {
  const char* wanted = std::getenv("AERO_CPU_ISA");
  if (!wanted || !*wanted) return best();
  std::vector<std::string> names;
  for (const InstructionSet& set : kInstructionSets) {
    if (std::string_view(wanted) == set.name && set.machine_has()) return set;
    names.emplace_back(set.name);
  }
  throw std::invalid_argument("AERO_CPU_ISA must be one of " + joined(names) +
                              ", of which this machine has " + joined(available_isa_names()) +
                              ", got " + wanted);
}

}  // namespace

std::vector<std::string> available_isa_names() {
  std::vector<std::string> names;
  for (const InstructionSet& set : kInstructionSets)
    if (set.machine_has()) names.emplace_back(set.name);
  return names;
}

std::string isa_name() { return in_use().name; }

const Kernels& kernels_in_use() { return in_use().kernels(); }

}  // namespace aero::kernels::cpu

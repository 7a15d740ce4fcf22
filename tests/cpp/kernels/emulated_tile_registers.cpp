#include "tests/cpp/kernels/emulated_tile_registers.h"

#include "kernels/cpu/dispatch.h"

#if defined(__x86_64__) && defined(__linux__)

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace aero::kernels::testing {
namespace {

constexpr int kRegisters = 8, kMostRows = 16, kMostBytes = 64;

struct Register {
  int rows = 0, bytes = 0;  ///< shape; 0: not configured
  std::array<std::array<unsigned char, kMostBytes>, kMostRows> data{};

  uint32_t word(int row, int column) const {
    uint32_t bits;
    std::memcpy(&bits, &data[static_cast<size_t>(row)][static_cast<size_t>(column) * 4], 4);
    return bits;
  }
};

thread_local std::array<Register, kRegisters> registers;
thread_local bool is_configured = false;
std::atomic<int64_t> product_count = 0;

[[noreturn]] void refuse(const char* why) {
  // Neither streams nor exceptions may be used in a signal handler.
  const auto say = [](const char* text) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) std::abort();
  };
  say("tile registers: "), say(why), say("\n");
  std::abort();
}

Register& configured(int number) {
  if (!is_configured) refuse("used without a configuration");
  if (number >= kRegisters || registers[static_cast<size_t>(number)].rows == 0)
    refuse("a register without a shape");
  return registers[static_cast<size_t>(number)];
}

void load_configuration(const unsigned char* from) {
  if (reinterpret_cast<uintptr_t>(from) % 64 != 0) refuse("the configuration crosses a line");
  if (from[0] != 1 || from[1] != 0) refuse("palette 1 and row 0 are what there is");
  for (int n = 0; n < 16; ++n) {
    const int bytes = from[16 + 2 * n] | from[17 + 2 * n] << 8, rows = from[48 + n];
    if (bytes > kMostBytes || rows > kMostRows || (bytes == 0) != (rows == 0))
      refuse("an impossible shape");
    if (n >= kRegisters && rows > 0) refuse("a shape for a register beyond the last");
    if (n < kRegisters) {
      registers[static_cast<size_t>(n)] = {};
      registers[static_cast<size_t>(n)].rows = rows;
      registers[static_cast<size_t>(n)].bytes = bytes;
    }
  }
  is_configured = true;
}

/// Subnormal numbers count as zero.
float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
float low(uint32_t pair) { return flushed(std::bit_cast<float>(pair << 16)); }
float high(uint32_t pair) { return flushed(std::bit_cast<float>(pair & 0xffff0000u)); }

/// TDPBF16PS: products of the low and of the high halves are summed apart from the first to the
/// last, then together, then onto the register. Not looked at by the sanitizers, for its time; it
/// touches registers alone.
__attribute__((no_sanitize("address", "undefined", "thread"))) void multiply(Register& to,
                                                                             const Register& a,
                                                                             const Register& b) {
  if (a.bytes / 4 != b.rows || to.rows != a.rows || to.bytes != b.bytes)
    refuse("a product of shapes that do not fit");
  const int columns = b.bytes / 4;
  float b_low[kMostRows][16], b_high[kMostRows][16];
  for (int k = 0; k < b.rows; ++k)
    for (int n = 0; n < columns; ++n)
      b_low[k][n] = low(b.word(k, n)), b_high[k][n] = high(b.word(k, n));
  for (int m = 0; m < a.rows; ++m) {
    float even[16] = {}, odd[16] = {};
    for (int k = 0; k < b.rows; ++k) {
      const float a_low = low(a.word(m, k)), a_high = high(a.word(m, k));
      // A product of two bfloat16 is exact, so that these are fused.
      for (int n = 0; n < columns; ++n) even[n] += a_low * b_low[k][n];
      for (int n = 0; n < columns; ++n) odd[n] += a_high * b_high[k][n];
    }
    for (int n = 0; n < columns; ++n) {
      const float sum = std::bit_cast<float>(to.word(m, n)) + (even[n] + odd[n]);
      std::memcpy(&to.data[static_cast<size_t>(m)][static_cast<size_t>(n) * 4], &sum, 4);
    }
  }
  product_count.fetch_add(1, std::memory_order_relaxed);
}

void load_rows(Register& to, const unsigned char* from, int64_t stride) {
  to.data = {};
  for (int row = 0; row < to.rows; ++row)
    std::memcpy(to.data[static_cast<size_t>(row)].data(), from + row * stride,
                static_cast<size_t>(to.bytes));
}
void store_rows(const Register& from, unsigned char* to, int64_t stride) {
  for (int row = 0; row < from.rows; ++row)
    std::memcpy(to + row * stride, from.data[static_cast<size_t>(row)].data(),
                static_cast<size_t>(from.bytes));
}

/// An instruction of three VEX bytes, opcode, ModRM and what follows it.
class Instruction {
 public:
  Instruction(const unsigned char* code, const greg_t* state) : state_(state) {
    is_vex_ = code[0] == 0xc4 && (code[1] & 0x1f) == 2 && (code[2] & 0x84) == 0;
    prefix = code[2] & 3, opcode = code[3];
    vvvv = ~code[2] >> 3 & 15;
    const int modrm = code[4], mod = modrm >> 6;
    reg = (modrm >> 3 & 7) | (~code[1] >> 4 & 8);
    rm = (modrm & 7) | (~code[1] >> 2 & 8);
    length = 5;
    is_register = mod == 3;
    if (!is_register) address_ = decoded_address(code, mod);
  }

  bool is(int wanted_opcode, int wanted_prefix, bool wants_register) const {
    return is_vex_ && opcode == wanted_opcode && prefix == wanted_prefix &&
           is_register == wants_register;
  }
  unsigned char* address() const { return reinterpret_cast<unsigned char*>(address_); }
  /// Bytes from row to row, where the address names them.
  int64_t stride() const { return index_; }

  int prefix, opcode, vvvv, reg, rm, length;
  bool is_register;

 private:
  int64_t general(int number) const {
    static constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                        REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                        REG_R12, REG_R13, REG_R14, REG_R15};
    return state_[kPlaces[number]];
  }

  int64_t decoded_address(const unsigned char* code, int mod) {
    int64_t address = 0;
    bool has_base = true;
    int base = rm;
    if ((rm & 7) == 4) {
      const int sib = code[length++], index = (sib >> 3 & 7) | (~code[1] >> 3 & 8);
      base = (sib & 7) | (~code[1] >> 2 & 8);
      if (index != 4) index_ = general(index) << (sib >> 6);
      has_base = mod != 0 || (base & 7) != 5;
    } else if (mod == 0 && (rm & 7) == 5) {
      refuse("an address relative to the code");
    }
    if (has_base) address = general(base);
    if (mod == 1) {
      address += static_cast<signed char>(code[length++]);
    } else if (mod == 2 || !has_base) {
      int32_t displacement;
      std::memcpy(&displacement, code + length, 4);
      address += displacement, length += 4;
    }
    return address;
  }

  const greg_t* state_;
  bool is_vex_;
  int64_t address_ = 0, index_ = 0;
};

constexpr int kNoPrefix = 0, kF3 = 2, kF2 = 3;

bool emulate(const Instruction& i) {
  if (i.is(0x49, kNoPrefix, false)) {
    load_configuration(i.address() + i.stride());
  } else if (i.is(0x49, kNoPrefix, true)) {
    is_configured = false;
  } else if (i.is(0x49, kF2, true)) {
    configured(i.reg).data = {};
  } else if (i.is(0x4b, kF2, false)) {
    load_rows(configured(i.reg), i.address(), i.stride());
  } else if (i.is(0x4b, kF3, false)) {
    store_rows(configured(i.reg), i.address(), i.stride());
  } else if (i.is(0x5c, kF3, true)) {
    if (i.reg == i.rm || i.reg == i.vvvv || i.rm == i.vvvv) refuse("a product of one register");
    multiply(configured(i.reg), configured(i.rm), configured(i.vvvv));
  } else {
    return false;
  }
  return true;
}

struct sigaction handler_before;

void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* state = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction instruction(reinterpret_cast<const unsigned char*>(state[REG_RIP]), state);
  if (emulate(instruction))
    state[REG_RIP] += instruction.length;
  else
    sigaction(SIGILL, &handler_before, nullptr);  // meets the instruction once more
}

}  // namespace

bool can_emulate_tile_registers() {
  const std::vector<std::string> names = cpu::available_isa_names();
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return has("avx512bf16") && !has("amx");
}

EmulatedTileRegisters::EmulatedTileRegisters() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &handler_before);
}
EmulatedTileRegisters::~EmulatedTileRegisters() { sigaction(SIGILL, &handler_before, nullptr); }

const cpu::AttentionEntropyKernels& EmulatedTileRegisters::attention_kernels() {
  return cpu::kAmx.attention_entropy;
}

int64_t EmulatedTileRegisters::products() { return product_count; }

}  // namespace aero::kernels::testing

#else

#include <stdexcept>

namespace aero::kernels::testing {
bool can_emulate_tile_registers() { return false; }
EmulatedTileRegisters::EmulatedTileRegisters() = default;
EmulatedTileRegisters::~EmulatedTileRegisters() = default;
const cpu::AttentionEntropyKernels& EmulatedTileRegisters::attention_kernels() {
  throw std::logic_error("tile registers are emulated on x86-64 and Linux alone");
}
int64_t EmulatedTileRegisters::products() { return 0; }
}  // namespace aero::kernels::testing

#endif

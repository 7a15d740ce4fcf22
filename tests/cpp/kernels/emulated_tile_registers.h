// The tile registers of AMX on a machine without them.
//
// Their instructions are then illegal: the operating system sends a signal for each, and a handler
// does what the instruction would have done. So it is the object code of the kernels that is
// tested, encodings, shapes and strides included.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace aero::kernels::testing {

/// Whether this machine can run the rest of such object code, and lacks the tile registers.
bool can_emulate_tile_registers();

/// Catches the instructions while it lives, whichever thread meets them. One that the manual calls
/// illegal, for its shapes or an unconfigured register, ends the process and says why.
class EmulatedTileRegisters {
 public:
  EmulatedTileRegisters();
  ~EmulatedTileRegisters();
  EmulatedTileRegisters(const EmulatedTileRegisters&) = delete;
  EmulatedTileRegisters& operator=(const EmulatedTileRegisters&) = delete;

  /// The kernels that use the registers; only where they can be emulated.
  static const cpu::AttentionEntropyKernels& attention_kernels();

  /// Products made so far, over all threads.
  static int64_t products();
};

}  // namespace aero::kernels::testing

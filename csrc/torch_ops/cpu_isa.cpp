// Which instruction set the CPU kernels run with; a plain C symbol, since operators return tensors.
#include <exception>
#include <string>

#include "kernels/cpu/dispatch.h"

namespace {

std::string isa_or_reason() {
  try {
    return aero::kernels::cpu::isa_name();
  } catch (const std::exception& error) {
    // A wrong AERO_CPU_ISA is the operators' error to raise; here it is information.
    return error.what();
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* aero_cpu_isa() {
  thread_local std::string text;
  text = isa_or_reason();
  return text.c_str();
}

#define AERO_ELEMENT Float16
#include "tests/cpp/kernels/cuda/attention_entropy_emulation_of.h"

#define AERO_ELEMENT TensorFloat32
#include "tests/cpp/kernels/cuda/attention_entropy_emulation_of.h"

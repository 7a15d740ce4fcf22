// Where CUDA work is put; part of every operator's entry points for GPUs.
#pragma once

namespace aero::kernels::cuda {

/// A CUDA stream (null: the default one) of a device.
struct Queue {
  int device = 0;
  void* stream = nullptr;
};

/// The reason why the kernels cannot run on this machine, in words; "" where nothing does.
const char* obstacle();

}  // namespace aero::kernels::cuda

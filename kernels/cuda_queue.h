// Where CUDA work is put; part of every operator's entry points for GPUs.
#pragma once

#include <vector>

#include "kernels/layout.h"

namespace aero::kernels::cuda {

/// A CUDA stream (null: the default one) of a device.
struct Queue {
  int device = 0;
  void* stream = nullptr;
};

/// The reason why the kernels cannot run on this machine, in words; "" where nothing does.
const char* obstacle();

/// Puts copies within the device's memory in the queue. Throws what an operator's launch throws.
void copy_rows(const char* op, const std::vector<RowCopy>& copies, const Queue& queue);

}  // namespace aero::kernels::cuda

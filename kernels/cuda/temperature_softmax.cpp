// Softmax with temperature and entropy on a GPU: a call that cannot be launched is an error in
// words.
#include "kernels/temperature_softmax.h"

#include "kernels/cuda/temperature_softmax_kernels.h"

namespace aero::kernels::cuda {
namespace {

constexpr const char* kOp = "temperature_softmax";

template <class Params>
void launch_checked(const Params& params, const Queue& queue) {
  check_type(kOp, "scores", params.data_type);
  check_positions(kOp, params.queries, params.keys);
  put_in_queue(kOp, queue, [&](cudaStream_t stream, LaunchError& error) {
    launch_of_type(params, stream, error);
  });
}

}  // namespace

void launch(const TemperatureSoftmaxForwardParams& params, const Queue& queue) {
  launch_checked(params, queue);
}

void launch(const TemperatureSoftmaxBackwardParams& params, const Queue& queue) {
  launch_checked(params, queue);
}

}  // namespace aero::kernels::cuda

// Calls what puts work on a GPU where there is none, or with what no kernel takes, and prints what
// it says; for tests/python/test_cuda_launchers.py.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "kernels/attention_entropy.h"
#include "kernels/entropy_regularization.h"
#include "kernels/scaled_ffn.h"
#include "kernels/temperature_softmax.h"

namespace {

using namespace aero::kernels;

template <class Call>
void say(const char* what, Call call) {
  try {
    call();
    std::printf("%s: done\n", what);
  } catch (const std::invalid_argument& error) {
    std::printf("%s: invalid_argument: %s\n", what, error.what());
  } catch (const std::runtime_error& error) {
    std::printf("%s: runtime_error: %s\n", what, error.what());
  }
}

AttentionEntropyForwardParams attention() {
  AttentionEntropyForwardParams p;
  p.batch = p.heads = p.key_heads = 1;
  p.queries = p.keys = p.head_dim = p.value_dim = 8;
  return p;
}
TemperatureSoftmaxForwardParams softmax() {
  TemperatureSoftmaxForwardParams p;
  p.batch = p.heads = 1;
  p.queries = p.keys = 8;
  return p;
}

constexpr int64_t kTooMany = int64_t{1} << 30;

}  // namespace

int main() {
  const cuda::Queue queue;
  auto a = attention();
  a.data_type = DataType::kFloat64;
  say("attention in float64", [&] { cuda::launch(a, queue); });
  a = attention(), a.head_dim = 257;
  say("attention of wide heads", [&] { cuda::launch(a, queue); });
  a = attention(), a.value_dim = 16;
  say("attention of wide values", [&] { cuda::launch(a, queue); });
  float number = 0;
  a = attention(), a.bias.data = &number;
  say("attention with a bias", [&] { cuda::launch(a, queue); });
  a = attention(), a.alibi_slopes.data = &number;
  say("attention with slopes", [&] { cuda::launch(a, queue); });
  a = attention(), a.keys = kTooMany;
  say("attention of many keys", [&] { cuda::launch(a, queue); });
  a = attention(), a.batch = kTooMany;
  say("attention of many heads", [&] { cuda::launch(a, queue); });
  AttentionEntropyBackwardParams attention_backward;
  static_cast<AttentionEntropyParams&>(attention_backward) = attention();
  setenv("AERO_CUDA_BACKWARD", "sideways", 1);
  say("attention backward sideways", [&] { cuda::head_blocks(attention_backward, queue); });
  setenv("AERO_CUDA_BACKWARD", "heads", 1);
  auto s = softmax();
  s.data_type = DataType::kFloat64;
  say("softmax in float64", [&] { cuda::launch(s, queue); });
  TemperatureSoftmaxBackwardParams backward;
  backward.data_type = DataType::kFloat64;
  say("softmax backward in float64", [&] { cuda::launch(backward, queue); });
  s = softmax(), s.queries = kTooMany;
  say("softmax of many queries", [&] { cuda::launch(s, queue); });
  EntropyRegularizationForwardParams penalty;
  penalty.data_type = DataType::kFloat64;
  say("penalty in float64", [&] { cuda::launch(penalty, nullptr, queue); });
  EntropyRegularizationBackwardParams penalty_backward;
  penalty_backward.queries = kTooMany;
  say("penalty of many queries", [&] { cuda::launch(penalty_backward, queue); });
  ScaledFfnProductParams product;
  product.rows = 3, product.width = 5, product.data_type = DataType::kFloat64;
  say("feed-forward in float64", [&] { cuda::launch(product, nullptr, queue); });
  product.data_type = DataType::kFloat32, product.rows = 0;
  say("feed-forward of no rows", [&] { cuda::launch(product, nullptr, queue); });
  product.rows = 3, product.width = kTooMany;
  say("feed-forward of wide rows", [&] { cuda::launch(product, nullptr, queue); });
  ScaledFfnGradientParams gradients;
  gradients.data_type = DataType::kFloat64;
  say("feed-forward backward in float64", [&] { cuda::launch(gradients, nullptr, queue); });
  if (*cuda::obstacle() == '\0') return 0;  // here they would be started, without memory
  say("attention", [&] { cuda::launch(attention(), queue); });
  say("attention backward", [&] { cuda::head_blocks(attention_backward, queue); });
  say("softmax", [&] { cuda::launch(softmax(), queue); });
  penalty.data_type = DataType::kFloat32;
  say("penalty", [&] { cuda::launch(penalty, nullptr, queue); });
  product.width = 5;
  say("feed-forward", [&] { cuda::launch(product, nullptr, queue); });
  gradients.data_type = DataType::kBFloat16;
  say("feed-forward backward", [&] { cuda::launch(gradients, nullptr, queue); });
  return 0;
}

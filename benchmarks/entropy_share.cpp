// The attention kernels of this machine's instruction set as plain functions, for entropy_share.py,
// which compiles this file twice: with the kernels as they are, and without entropy and
// temperature.
#include <cstdint>
#include <new>
#include <random>
#include <vector>

#include "kernels/cpu/attention_passes.h"

namespace aero::benchmarks {
namespace {

using namespace kernels;

/// Lines of the cache, as torch aligns its tensors.
template <class T>
struct Aligned {
  using value_type = T;
  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* data, size_t) { ::operator delete(data, std::align_val_t(64)); }
  bool operator==(const Aligned&) const { return true; }
};
template <class T>
using Buffer = std::vector<T, Aligned<T>>;

/// A random tensor.
template <class T>
Buffer<T> drawn(size_t count) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  Buffer<T> values(count);
  for (T& value : values) value = cpu::from_real<T>(normal(generator));
  return values;
}

/// One call in causal self-attention, forward and backward, on one thread.
class Call {
 public:
  virtual ~Call() = default;
  virtual void forward() = 0;
  virtual void backward() = 0;
};

template <class Element>
class CallOf : public Call {
 public:
  CallOf(DataType type, int64_t batch, int64_t heads, int64_t length, int64_t head_dim,
         bool largest)
      : rows_(static_cast<size_t>(batch * heads * length)),
        count_(rows_ * static_cast<size_t>(head_dim)) {
    const Strides strides{heads * length * head_dim, length * head_dim, head_dim};
    AttentionEntropyParams& p = forward_;
    p.data_type = type;
    p.batch = batch, p.heads = p.key_heads = heads;
    p.queries = p.keys = length, p.head_dim = p.value_dim = head_dim;
    p.q = {q_.data(), strides}, p.k = {k_.data(), strides}, p.v = {v_.data(), strides};
    p.scale = 0.125;
    p.is_causal = true;
#ifndef AERO_WITHOUT_ENTROPY
    p.temperature = {temperature_.data(), {heads * length, length, 1}};
    backward_.dentropy = dentropy_.data();
    backward_.dtemperature = dtemperature_.data();
#endif
    static_cast<AttentionEntropyParams&>(backward_) = p;
    forward_.out = {out_.data(), strides};
    forward_.entropy = entropy_.data(), forward_.logsumexp = logsumexp_.data();
    forward_.statistics = statistics_.data();
    backward_.out = {out_.data(), strides};
    backward_.statistics = statistics_.data();
    backward_.dout = {dout_.data(), strides};
    backward_.dq = {dq_.data(), strides};
    backward_.dk = {dk_.data(), strides};
    backward_.dv = {dv_.data(), strides};
    if (largest) {
      forward_.max_logits = max_logits_.data();
      forward_.largest_key = largest_key_.data();
      backward_.dmax_logits = dentropy_.data();
      backward_.largest_key = largest_key_.data();
    }
    scratch_.resize(static_cast<size_t>(
        larger(Forward::scratch_bytes(forward_), Backward::scratch_bytes(backward_))));
    CallOf::forward();
  }
  void forward() override {
    Forward::run(forward_, scratch_.data(), 0, Forward::item_count(forward_));
  }
  void backward() override {
    Backward::run(backward_, scratch_.data(), 0, Backward::item_count(backward_));
  }

 private:
  using Forward = cpu::AttentionEntropyForward<Element, float>;
  using Backward = cpu::AttentionEntropyBackward<Element, float>;
  static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

  size_t rows_, count_;
  Buffer<Element> q_ = drawn<Element>(count_), k_ = q_, v_ = q_, out_ = q_, dout_ = q_;
  Buffer<Element> dq_ = q_, dk_ = q_, dv_ = q_;
  Buffer<float> temperature_ = Buffer<float>(rows_, 0.7f), dtemperature_ = temperature_;
  Buffer<float> entropy_ = temperature_, logsumexp_ = temperature_, dentropy_ = temperature_;
  Buffer<float> statistics_ = Buffer<float>(3 * rows_), max_logits_ = temperature_;
  Buffer<int64_t> largest_key_ = Buffer<int64_t>(rows_);
  AttentionEntropyForwardParams forward_;
  AttentionEntropyBackwardParams backward_;
  Buffer<unsigned char> scratch_;
};

}  // namespace
}  // namespace aero::benchmarks

using aero::benchmarks::Call;

extern "C" {
Call* prepare(bool is_bfloat16, int64_t batch, int64_t heads, int64_t length, int64_t head_dim,
              bool largest) {
  using namespace aero::benchmarks;
  if (is_bfloat16)
    return new CallOf<cpu::BFloat16>(DataType::kBFloat16, batch, heads, length, head_dim, largest);
  return new CallOf<float>(DataType::kFloat32, batch, heads, length, head_dim, largest);
}
void forward(Call* call) { call->forward(); }
void backward(Call* call) { call->backward(); }
void release(Call* call) { delete call; }
}

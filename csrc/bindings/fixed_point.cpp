// Fixed-point arithmetic for Python: functions from int64 arrays of ring elements to int64 arrays.
// aero/fixed_point/functions.py checks types and gives the functions their names and documentation.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "csrc/bindings/bindings.h"
#include "csrc/fixed_point/approximations.h"
#include "csrc/fixed_point/arithmetic.h"
#include "csrc/fixed_point/rows.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using fixed_point::Arithmetic;
using fixed_point::Ring;
using RingArray = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using RealArray = py::array_t<double, py::array::c_style | py::array::forcecast>;

const Ring* ring_data(const RingArray& array) {
  return reinterpret_cast<const Ring*>(array.data());
}

Ring* ring_data(RingArray& array) { return reinterpret_cast<Ring*>(array.mutable_data()); }

RingArray like(const py::array& array) {
  return RingArray(std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()));
}

/// "(2, 3)", as NumPy has it.
std::string shape_text(const py::array& array) {
  return py::str(array.attr("shape")).cast<std::string>();
}

/// Checks the shapes of two arrays, whose elements are read without another look.
void require_shapes(bool fit, const char* expected, const py::array& a, const py::array& b) {
  if (fit) return;
  throw std::invalid_argument("Arithmetic." + std::string(expected) + ", got " + shape_text(a) +
                              " and " + shape_text(b) +
                              "; aero.fixed_point.functions takes more shapes");
}

template <class Function>
RingArray map_elements(const RingArray& x, const Function& function) {
  RingArray y = like(x);
  const Ring* in = ring_data(x);
  Ring* out = ring_data(y);
  const py::ssize_t count = x.size();
  const py::gil_scoped_release release;
  for (py::ssize_t i = 0; i < count; ++i) out[i] = function(in[i]);
  return y;
}

RingArray encode(const Arithmetic& arithmetic, const RealArray& x) {
  RingArray y = like(x);
  std::transform(x.data(), x.data() + x.size(), ring_data(y),
                 [&](double value) { return arithmetic.encode(value); });
  return y;
}

RealArray decode(const Arithmetic& arithmetic, const RingArray& x) {
  RealArray y(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
  std::transform(ring_data(x), ring_data(x) + x.size(), y.mutable_data(),
                 [&](Ring value) { return arithmetic.decode(value); });
  return y;
}

RingArray product(Arithmetic& arithmetic, const RingArray& a, const RingArray& b, bool is_public) {
  require_shapes(a.size() == b.size(), "product: a and b must have one shape", a, b);
  RingArray c = like(a);
  const Ring* left = ring_data(a);
  const Ring* right = ring_data(b);
  Ring* out = ring_data(c);
  const py::ssize_t count = a.size();
  const py::gil_scoped_release release;
  for (py::ssize_t i = 0; i < count; ++i)
    out[i] =
        is_public ? arithmetic.scaled(left[i], right[i]) : arithmetic.product(left[i], right[i]);
  return c;
}

// a: [batch, rows, inner]; b: [batch, inner, columns], or batch 1 for the same in all.
RingArray matmul(Arithmetic& arithmetic, const RingArray& a, const RingArray& b) {
  require_shapes(a.ndim() == 3 && b.ndim() == 3 && a.shape(2) == b.shape(1) &&
                     (b.shape(0) == 1 || b.shape(0) == a.shape(0)),
                 "matmul: a must be [batch, rows, inner] and b [batch or 1, inner, columns]", a, b);
  const py::ssize_t batch = a.shape(0);
  const py::ssize_t rows = a.shape(1);
  const py::ssize_t inner = a.shape(2);
  const py::ssize_t columns = b.shape(2);
  RingArray c({batch, rows, columns});
  const Ring* left = ring_data(a);
  const Ring* right = ring_data(b);
  Ring* out = ring_data(c);
  const py::ssize_t right_step = b.shape(0) == 1 ? 0 : inner * columns;
  const py::gil_scoped_release release;
  for (py::ssize_t i = 0; i < batch; ++i)
    fixed_point::matmul(arithmetic, rows, inner, columns, left + i * rows * inner,
                        right + i * right_step, out + i * rows * columns);
  return c;
}

RingArray softmax(Arithmetic& arithmetic, const RingArray& scores, const RingArray& live,
                  const fixed_point::Softmax& settings) {
  require_shapes(scores.ndim() == 2 && live.size() == scores.shape(0),
                 "softmax: scores must be [rows, keys] and live [rows]", scores, live);
  RingArray probabilities = like(scores);
  const Ring* in = ring_data(scores);
  const std::int64_t* counts = live.data();
  Ring* out = ring_data(probabilities);
  const py::ssize_t rows = scores.shape(0);
  const py::ssize_t columns = scores.shape(1);
  const py::gil_scoped_release release;
  fixed_point::softmax(arithmetic, settings, rows, columns, in, counts, out);
  return probabilities;
}

RingArray layer_norm(Arithmetic& arithmetic, const RingArray& x, const RingArray& gain,
                     const RingArray& bias, double epsilon) {
  for (const RingArray* part : {&gain, &bias})
    require_shapes(x.ndim() == 2 && part->size() == x.shape(1),
                   "layer_norm: x must be [rows, width], gain and bias [width]", x, *part);
  RingArray y = like(x);
  const Ring* in = ring_data(x);
  const Ring* gains = ring_data(gain);
  const Ring* biases = ring_data(bias);
  Ring* out = ring_data(y);
  const py::ssize_t rows = x.shape(0);
  const py::ssize_t width = x.shape(1);
  const py::gil_scoped_release release;
  fixed_point::layer_norm(arithmetic, rows, width, epsilon, in, gains, biases, out);
  return y;
}

fixed_point::Gelu gelu_kind(const std::string& name) {
  static const std::map<std::string, fixed_point::Gelu> kinds = {
      {"tanh", fixed_point::Gelu::kTanh},
      {"segment", fixed_point::Gelu::kSegment},
      {"piecewise", fixed_point::Gelu::kPiecewise}};
  const auto found = kinds.find(name);
  if (found == kinds.end())
    throw std::invalid_argument(
        "gelu: kind must be \"tanh\", \"segment\" or \"piecewise\", got \"" + name + "\"");
  return found->second;
}

Arithmetic arithmetic_from(unsigned fraction_bits, const std::string& truncation,
                           bool one_bit_product_error, std::uint64_t seed) {
  // 12: OpenBumbleBee's kernels in Z_2^32 drop down to so many. 30: a product's 2 f bits and one
  // sign fit into the ring with a bit to spare.
  if (fraction_bits < 12 || fraction_bits > 30)
    throw std::invalid_argument("Arithmetic: fraction_bits must be from 12 to 30, got " +
                                std::to_string(fraction_bits));
  static const std::map<std::string, fixed_point::Truncation> truncations = {
      {"floor", fixed_point::Truncation::kFloor},
      {"nearest", fixed_point::Truncation::kNearest},
      {"shares", fixed_point::Truncation::kShares}};
  const auto found = truncations.find(truncation);
  if (found == truncations.end())
    throw std::invalid_argument(
        "Arithmetic: truncation must be \"floor\", \"nearest\" or \"shares\", got \"" + truncation +
        "\"");
  return Arithmetic({.fraction_bits = fraction_bits,
                     .truncation = found->second,
                     .one_bit_product_error = one_bit_product_error,
                     .seed = seed});
}

/// Of all methods but the constructor.
constexpr const char* kMethodDoc =
    "What the function of this name in aero.fixed_point.functions calls: use that, which checks "
    "its "
    "arguments, takes more shapes and says what it computes.";

constexpr const char* kArithmeticDoc =
    R"doc(Fixed-point numbers in Z_2^64, truncated as SPU's Cheetah protocol does.

It holds the state of a generator that draws the random error of the two parties' shares, so equal
seeds and equal calls give equal bits. Not for several threads at once.

Args:
    fraction_bits: f, from 12 to 30.
    truncation: "floor", the arithmetic shift; "shares", each party shifting its own share: off by
        -1, 0 or +1 in the last bit (SPU, truncate_prot.cc); "nearest", rounded half up (SPU's
        plaintext reference protocol, ref2k.cc).
    one_bit_product_error: products may be off by one before their truncation (SPU, cheetah_mul.cc).
    seed: of the generator.

Raises:
    ValueError: For an argument out of its range.

Example:
    >>> from aero import fixed_point
    >>> fixed_point.Arithmetic(fraction_bits=20).fraction_bits
    20
)doc";

}  // namespace

void bind_fixed_point(py::module_& module) {
  py::options options;
  options.disable_function_signatures();
  py::class_<Arithmetic>(module, "Arithmetic", kArithmeticDoc)
      .def(py::init(&arithmetic_from), py::kw_only(), py::arg("fraction_bits") = 18,
           py::arg("truncation") = "floor", py::arg("one_bit_product_error") = false,
           py::arg("seed") = 0)
      .def_property_readonly("fraction_bits", &Arithmetic::fraction_bits, "f.")
      .def("encode", &encode, kMethodDoc)
      .def("decode", &decode, kMethodDoc)
      .def(
          "truncate",
          [](Arithmetic& self, const RingArray& x, unsigned bits) {
            return map_elements(x, [&](Ring value) { return self.truncate(value, bits); });
          },
          kMethodDoc)
      .def("product", &product, kMethodDoc)
      .def("matmul", &matmul, kMethodDoc)
      .def(
          "exponential",
          [](Arithmetic& self, const RingArray& x, unsigned squarings, bool clip,
             unsigned clip_bits, bool ring_32) {
            const fixed_point::Exponential settings{squarings, clip, clip_bits, ring_32};
            return map_elements(
                x, [&](Ring value) { return fixed_point::exponential(self, value, settings); });
          },
          kMethodDoc)
      .def(
          "reciprocal",
          [](Arithmetic& self, const RingArray& x) {
            return map_elements(x, [&](Ring v) { return fixed_point::reciprocal(self, v); });
          },
          kMethodDoc)
      .def(
          "reciprocal_square_root",
          [](Arithmetic& self, const RingArray& x) {
            return map_elements(
                x, [&](Ring v) { return fixed_point::reciprocal_square_root(self, v); });
          },
          kMethodDoc)
      .def(
          "hyperbolic_tangent",
          [](Arithmetic& self, const RingArray& x) {
            return map_elements(x,
                                [&](Ring v) { return fixed_point::hyperbolic_tangent(self, v); });
          },
          kMethodDoc)
      .def(
          "gelu",
          [](Arithmetic& self, const RingArray& x, const std::string& kind) {
            const fixed_point::Gelu form = gelu_kind(kind);
            return map_elements(x, [&](Ring v) { return fixed_point::gelu(self, v, form); });
          },
          kMethodDoc)
      .def(
          "leaky_relu",
          [](Arithmetic& self, const RingArray& x, std::int64_t slope) {
            const Ring factor = static_cast<Ring>(slope);
            return map_elements(x,
                                [&](Ring v) { return fixed_point::leaky_relu(self, v, factor); });
          },
          kMethodDoc)
      .def(
          "softmax",
          [](Arithmetic& self, const RingArray& scores, const RingArray& live, unsigned squarings,
             bool clip, unsigned clip_bits, bool ring_32, bool score_truncation,
             bool broadcast_reciprocal) {
            return softmax(
                self, scores, live,
                {{squarings, clip, clip_bits, ring_32}, score_truncation, broadcast_reciprocal});
          },
          kMethodDoc)
      .def("layer_norm", &layer_norm, kMethodDoc);
}

}  // namespace aero::bindings

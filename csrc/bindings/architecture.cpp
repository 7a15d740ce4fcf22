// ArchitectureSpec for Python: an immutable value with named fields.

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <cctype>
#include <optional>
#include <stdexcept>
#include <string>

#include "csrc/bindings/bindings.h"
#include "csrc/spec/counts.h"
#include "csrc/spec/fields.h"
#include "csrc/spec/label.h"
#include "csrc/spec/presets.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using spec::ArchitectureSpec;

spec::FieldValue field_value_from(const std::string& name, py::handle value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (PyIndex_Check(value.ptr()) == 0)
    throw std::invalid_argument(
        "ArchitectureSpec: " + name + " must be a bool, an int, a float or a str, got " +
        py::str(py::type::handle_of(value).attr("__name__")).cast<std::string>());
  const auto integer = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!integer) throw py::error_already_set();
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  // Too large for any field: the field's own check shows it with the allowed range.
  if (overflow != 0) return py::str(integer).cast<std::string>();
  return std::int64_t{number};
}

spec::FieldValues field_values_from(const py::dict& fields) {
  spec::FieldValues values;
  for (const auto& [name, value] : fields) {
    const auto text = py::str(name).cast<std::string>();
    values.emplace_back(text, field_value_from(text, value));
  }
  return values;
}

py::dict to_dict(const ArchitectureSpec& self) {
  py::dict fields;
  for (const auto& [name, value] : spec::field_values(self)) fields[py::str(name)] = value;
  return fields;
}

ArchitectureSpec from_dict(const py::dict& fields) {
  return spec::from_fields(field_values_from(fields));
}

std::string label(const ArchitectureSpec& self) { return spec::print_label(self); }

// The fields where self differs from the label's network at the preset's sizes, as keyword
// arguments. A field that would follow a listed one (see with_fields) is listed too.
std::string overrides_of(const ArchitectureSpec& self, std::string_view model) {
  const ArchitectureSpec base = spec::labelled(spec::preset(model), self);
  const bool heads = self.num_heads != base.num_heads || self.width != base.width;
  std::string text;
  for (const auto& [name, value] : spec::field_values(self))
    if (value != spec::field_value(base, name) || (name == "head_dim" && heads) ||
        (name == "hidden_width" && self.width != base.width) ||
        (name == "parallel_residual" && self.family != base.family))
      text.append(", ").append(name).append("=").append(spec::shown(value));
  return text;
}

// A Python expression that gives this spec again, at the preset with the shortest one.
std::string python_expression(const ArchitectureSpec& self) {
  std::string shortest;
  for (const std::string_view model : spec::preset_names()) {
    std::string text = "ArchitectureSpec.from_label(\"" + label(self) + "\", model=\"" +
                       std::string(model) + "\"" + overrides_of(self, model) + ")";
    if (shortest.empty() || text.size() < shortest.size()) shortest = std::move(text);
  }
  return shortest;
}

std::string to_string(const spec::OperationCount& operation) {
  return "OperationCount(count=" + std::to_string(operation.count) + ", shape=(" +
         std::to_string(operation.rows) + ", " + std::to_string(operation.columns) + "))";
}

std::string to_string(const spec::Flops& flops) {
  return "Flops(ffn=" + std::to_string(flops.ffn) +
         ", attention=" + std::to_string(flops.attention) +
         ", lm_head=" + std::to_string(flops.lm_head) + ", total=" + std::to_string(flops.total) +
         ")";
}

void bind_counts(py::module_& module) {
  using spec::Flops, spec::NonlinearOperations, spec::OperationCount;
  py::class_<Flops>(module, "Flops",
                    "Floating-point operations of one forward pass; a multiply-add is two.")
      .def_readonly("ffn", &Flops::ffn, "FLOPs of all feed-forward networks.")
      .def_readonly("attention", &Flops::attention, "FLOPs of all attention sub-blocks.")
      .def_readonly("lm_head", &Flops::lm_head, "FLOPs of the head; 0 in the paper's convention.")
      .def_readonly("total", &Flops::total, "The sum of the others.")
      .def("__repr__", py::overload_cast<const Flops&>(&to_string));
  py::class_<OperationCount>(module, "OperationCount", "A number of operations on one shape.")
      .def_readonly("count", &OperationCount::count, "How many operations.")
      .def_property_readonly(
          "shape",
          [](const OperationCount& self) { return py::make_tuple(self.rows, self.columns); },
          "The matrix each one works on: (rows, columns).")
      .def("__repr__", py::overload_cast<const OperationCount&>(&to_string));
  py::class_<NonlinearOperations>(module, "NonlinearOperations",
                                  "The nonlinear operations of one forward pass; `str` prints them "
                                  "as the paper's tables do.")
      .def_readonly("softmax", &NonlinearOperations::softmax, "L H softmaxes of [T, T].")
      .def_readonly("layernorm", &NonlinearOperations::layernorm, "LayerNorms of [T, d].")
      .def_readonly("dynamic_tanh", &NonlinearOperations::dynamic_tanh, "DyT, the tanh of [T, d].")
      .def_readonly("dynamic_erf", &NonlinearOperations::dynamic_erf, "Derf, the erf of [T, d].")
      .def_readonly("activation", &NonlinearOperations::activation, "Activations of [T, F].")
      .def_readonly("activation_symbol", &NonlinearOperations::activation_symbol,
                    "\"G\", \"R\" or \"LR\" as in labels; empty without an activation.")
      .def("__str__", py::overload_cast<const NonlinearOperations&>(&spec::to_string))
      .def("__repr__", [](const NonlinearOperations& self) {
        return "<NonlinearOperations " + spec::to_string(self) + ">";
      });
}

constexpr const char* kFromLabelDoc = R"doc(The network a label describes, at the sizes of a preset.

Args:
    label: A network in the label grammar, upper or lower case.
    model: A name of `preset_names()`: the sizes.
    **overrides: Sizes and flags to change, as `replace` does. `norm`, `ffn`, `temperature` and the
        other fields that the label states are errors here.

Raises:
    ValueError: With the position, what was expected there and the nearest valid label; or naming
        the field and its allowed values.

Example:
    >>> from aero.architecture import ArchitectureSpec
    >>> ArchitectureSpec.from_label("ereg(sm(t)+scfuffn_i6)", context_length=256).label
    'EReg(SM(t)+ScFuFFN_i6)'
)doc";

constexpr const char* kReplaceDoc = R"doc(A new spec with some fields changed.

A field that is not named and holds its default follows the others: `head_dim` = `width` /
`num_heads`, `hidden_width` = 4 `width`, `final_norm` by `norm`, `parallel_residual` for Pythia and
shaped attention; `normalized_layers` returns to "ffn" without weight or spectral norm, the number
of a part that the label does not have to 1.

Raises:
    ValueError: Names the field, its allowed values and the given one; an unknown field with the
        nearest name.

Example:
    >>> from aero.architecture import ArchitectureSpec
    >>> ArchitectureSpec.from_label("SM").replace(num_heads=6).head_dim
    128
)doc";

constexpr const char* kParameterCountDoc =
    R"doc(Number of parameters of the model `AeroForCausalLM` builds.

Args:
    training: Include the entropy thresholds [L, H], which only the training penalty uses.

Example:
    >>> from aero.architecture import ArchitectureSpec
    >>> ArchitectureSpec.from_label("SM+LN+G", context_length=1024).parameter_count()
    124439808
)doc";

constexpr const char* kFlopsDoc = R"doc(Floating-point operations of one forward pass over T tokens.

Args:
    convention: "paper" counts as Tables 4-7 of version 2 do: 3 T^2 d per layer for the two products
        with the attention scores, no head. "executed" counts every matrix product in full: 4 T^2 d, and the
        head.

Raises:
    ValueError: For another convention, or a count above 2^63 - 1.

Example:
    >>> from aero.architecture import ArchitectureSpec
    >>> ArchitectureSpec.from_label("SM+ScFuFFN").flops().ffn / 1e9
    1.811939328
)doc";

constexpr const char* kNonlinearOperationsDoc =
    R"doc(Softmaxes, LayerNorms, DyT, Derf and activations of one forward pass.

The final norm counts if it is a LayerNorm; the paper's tables list LN networks without one.

Example:
    >>> from aero.architecture import ArchitectureSpec
    >>> str(ArchitectureSpec.from_label("SM+LN+G", final_norm="none").nonlinear_operations())
    'SM:144xR^{128x128} LN:24xR^{128x768} G:12xR^{128x3072}'
)doc";

// Grammar and words as the parser's tables have them.
std::string class_document() {
  std::string text = R"doc(One network of the AERO family: the choices of its label and its sizes.

Immutable; equal fields are equal specs.

Labels say which nonlinearities a network keeps, in upper or lower case:

)doc";
  text.append(spec::label_grammar()) += R"doc(
Without ffn the FFN is two linear layers. The words:

)doc";
  for (const auto& [word, meaning] : spec::label_words())
    text.append("- `").append(word).append("`: ").append(meaning).append(".\n");
  text += R"doc(
Example:
    >>> import aero
    >>> spec = aero.ArchitectureSpec.from_label("EReg(SM(t)+ScFuFFN)", model="gpt2")
    >>> spec.temperature, spec.ffn, spec.entropy_regularized, spec.num_layers
    ('head_position', 'scaled_fused', True, 12)
)doc";
  return text;
}

std::string field_document(const spec::FieldDocument& field) {
  std::string text(field.meaning);
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  return text + (field.unit.empty() ? "." : " (" + std::string(field.unit) + ").");
}

}  // namespace

void bind_architecture(py::module_& module) {
  py::options options;
  options.disable_function_signatures();
  bind_counts(module);

  module.def("names_a_model", &spec::names_a_model, py::arg("text"),
             "Tells whether a text has a part of a name of transformers' models, and no label.");
  module.def(
      "label_words",
      [](const std::optional<std::string>& label) {
        py::dict words;
        for (const auto& [word, meaning] :
             label ? spec::label_words(spec::parse_label(*label)) : spec::label_words())
          words[py::str(word)] = meaning;
        return words;
      },
      py::arg("label") = py::none(),
      "Every word of the label grammar, or of a label, with its meaning.");
  module.def("part_names", &spec::part_names,
             "The fields of an ArchitectureSpec that say which kind of a numbered part it has, "
             "\"none\" without.");
  module.def("size_names", &spec::size_names,
             "The fields of an ArchitectureSpec that no label says and no norm brings with it.");
  module.def(
      "spec_field_documents",
      [] {
        py::dict documents;
        for (const auto& [name, unit, meaning] : spec::field_documents())
          documents[py::str(name)] = py::make_tuple(unit, meaning);
        return documents;
      },
      "Unit and meaning of every field of an ArchitectureSpec.");
  py::class_<ArchitectureSpec> type(module, "ArchitectureSpec", class_document().c_str());
  for (const spec::FieldDocument& field : spec::field_documents())
    type.def_property_readonly(
        std::string(field.name).c_str(),
        [name = field.name](const ArchitectureSpec& self) { return spec::field_value(self, name); },
        field_document(field).c_str());
  type.def_property_readonly("label", &label, "The canonical label.")
      .def_static(
          "from_label",
          [](const std::string& text, const std::string& model, const py::kwargs& overrides) {
            return spec::architecture_from_label(text, model, field_values_from(overrides));
          },
          py::arg("label"), py::kw_only(), py::arg("model") = "gpt2", kFromLabelDoc)
      .def_static("preset_names", &spec::preset_names, "The sizes that `from_label` knows by name.")
      .def(
          "replace",
          [](const ArchitectureSpec& self, const py::kwargs& fields) {
            return spec::with_fields(self, field_values_from(fields));
          },
          kReplaceDoc)
      .def("parameter_count", &spec::parameter_count, py::kw_only(), py::arg("training") = false,
           kParameterCountDoc)
      .def(
          "flops",
          [](const ArchitectureSpec& self, const std::string& convention) {
            return spec::flops(self, spec::flops_convention(convention));
          },
          py::arg("convention") = "paper", kFlopsDoc)
      .def("nonlinear_operations", &spec::nonlinear_operations, kNonlinearOperationsDoc)
      .def("to_dict", &to_dict, "All fields by name, as bool, int, float and str.")
      .def_static(
          "from_dict", &from_dict, py::arg("fields"),
          "The spec of `to_dict`; a missing, unknown or wrong field is a ValueError, but specs of "
          "earlier versions may lack what these did not have.")
      .def(
          "to_json",
          [](const ArchitectureSpec& self) {
            return py::module_::import("json").attr("dumps")(to_dict(self));
          },
          "`to_dict` as one line of JSON.")
      .def_static(
          "from_json",
          [](const std::string& text) {
            const py::object fields = py::module_::import("json").attr("loads")(text);
            if (!py::isinstance<py::dict>(fields))
              throw std::invalid_argument("ArchitectureSpec.from_json: text must be a JSON object");
            return from_dict(fields);
          },
          py::arg("text"), "The spec of `to_json`.")
      .def(py::self == py::self)
      .def("__hash__",
           [](const ArchitectureSpec& self) {
             return py::hash(py::tuple(to_dict(self).attr("values")()));
           })
      .def("__repr__", &python_expression)
      .def(py::pickle(&to_dict, &from_dict));
}

}  // namespace aero::bindings

// The fields of every primitive by name, the one list of them for files, Python and checks.
#pragma once

#include <string_view>

#include "csrc/network/network.h"

namespace aero::network {

// Calls visit(name, member) for every number, and visit(name, member, words) for every choice.
// Sizes are integers above 0, but for `start`, `window` and a source's
// `positions`. A file may hold a list for a real
// number: one for each time that its layer is repeated. No price depends on them.
template <class Visit>
void for_each_field(Embed& p, Visit&& visit) {
  visit("rows", p.rows);
  visit("width", p.width);
}
template <class Visit>
void for_each_field(Linear& p, Visit&& visit) {
  visit("in", p.in);
  visit("out", p.out);
  visit("transposed", p.transposed);
}
template <class Visit>
void for_each_field(SplitHeads& p, Visit&& visit) {
  visit("start", p.start);
  visit("heads", p.heads);
  visit("head_dim", p.head_dim);
}
template <class Visit>
void for_each_field(JoinHeads&, Visit&&) {}
template <class Visit>
void for_each_field(Rotate& p, Visit&& visit) {
  visit("heads", p.heads);
  visit("channels", p.channels);
  visit("base", p.base);
}
template <class Visit>
void for_each_field(Scores& p, Visit&& visit) {
  visit("heads", p.heads);
  visit("key_heads", p.key_heads);
  visit("head_dim", p.head_dim);
  visit("scale", p.scale);
  visit("temperature", p.temperature);
  visit("per_position", p.per_position);
  visit("soft_cap", p.soft_cap);
}
template <class Visit>
void for_each_field(Softmax& p, Visit&& visit) {
  visit("heads", p.heads);
  visit("causal", p.causal);
  visit("window", p.window);
}
template <class Visit>
void for_each_field(Shape& p, Visit&& visit) {
  visit("heads", p.heads);
}
template <class Visit>
void for_each_field(WeightedSum& p, Visit&& visit) {
  visit("heads", p.heads);
  visit("key_heads", p.key_heads);
  visit("head_dim", p.head_dim);
}
template <class Visit>
void for_each_field(Norm& p, Visit&& visit) {
  visit("kind", p.kind, kNormKinds);
  visit("width", p.width);
  visit("epsilon", p.epsilon);
}
template <class Visit>
void for_each_field(Activation& p, Visit&& visit) {
  visit("function", p.function, kFunctions);
  visit("width", p.width);
  visit("slope", p.slope);
}
template <class Visit>
void for_each_field(Multiply& p, Visit&& visit) {
  visit("width", p.width);
}
template <class Visit>
void for_each_field(Add&, Visit&&) {}
template <class Visit>
void for_each_field(Scale& p, Visit&& visit) {
  visit("factor", p.factor);
}
template <class Visit>
void for_each_field(Shift& p, Visit&& visit) {
  visit("tokens", p.tokens);
}
template <class Visit>
void for_each_field(Unfold& p, Visit&& visit) {
  visit("taps", p.taps);
}
template <class Visit>
void for_each_field(Pool& p, Visit&& visit) {
  visit("kind", p.kind, kPoolKinds);
}
template <class Visit>
void for_each_field(Argmax& p, Visit&& visit) {
  visit("width", p.width);
}

template <class Visit>
void for_each_field(Source& p, Visit&& visit) {
  visit("positions", p.positions);
  visit("width", p.width);
}
template <class Visit>
void for_each_field(Rearrange& p, Visit&& visit) {
  visit("positions", p.positions);
  visit("width", p.width);
}

// Throws std::invalid_argument naming the operation and the field: sizes out of range, values that
// are read before they are written, a result that nothing writes.
void validate(const Network& network);

}  // namespace aero::network

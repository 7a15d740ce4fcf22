// The parties' machines and network. Every field can be set by name; errors name the field
// and its range.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "csrc/spec/fields.h"

namespace aero::mpc {

// The default values are the link of the paper's test bed as its minutes show it: 4.8 s per GB of
// both parties' bytes and 6.0 ms per round. How much of a round is wire and how much software
// cannot be told from the tables, so all of it stands as software.
struct NetworkProfile {
  double uplink_mbps = 5000.0 / 3.0;    // client to server, 1e6 bit/s
  double downlink_mbps = 5000.0 / 3.0;  // server to client
  double round_trip_seconds = 0;        // on the wire
  double software_seconds = 0.006;      // per round: serialization, scheduling, system calls
  bool full_duplex = false;             // both directions at once, else they share one channel

  bool operator==(const NetworkProfile&) const = default;
};

// Seconds that one thread needs for one item; a party divides them by its threads. 0 means that the
// item is free or contained in another one: SPU cuts products so that there are as many encodings
// as ciphertext x plaintext products, which no timing can tell apart. The default values are the
// paper's machines, fitted to the 27 latencies of its tables: 30 s per million ciphertext x
// plaintext products (54 s where the embedding multiplies one row at a time) and 46.7 s per 1e9
// OTs, encodings, automorphisms and elementwise ciphertexts contained. Shares times shares keep
// both parties busy with half of the products each, hence the factor of two.
struct ComputeProfile {
  std::int64_t threads = 32;  // of each party
  double ct_pt_product_seconds = 2 * 32 * 30e-6;
  double embedding_product_seconds = 2 * 32 * 54e-6;  // ct_pt_product in the one-row embedding
  double plaintext_encoding_seconds = 0;
  double automorphism_seconds = 0;
  double elementwise_ciphertext_seconds = 0;
  double ot_seconds = 32 * 46.7e-9;
  double share_byte_seconds = 0;    // without ciphertexts: for each byte that the party sends
  double ring_product_seconds = 0;  // and each multiplication of its matrix products
  double client_slowdown = 1;       // the client's seconds over the server's

  bool operator==(const ComputeProfile&) const = default;
};

// `paper-testbed`, `lan-1gbps`, `wan-400mbps`, `wan-100mbps` (the network that the paper states).
std::vector<std::string_view> network_names();

// `paper-testbed`, `spu-epyc`, and `none`, which leaves the network alone.
std::vector<std::string_view> compute_names();

// Throw std::invalid_argument listing the names.
NetworkProfile network_profile(std::string_view name);
ComputeProfile compute_profile(std::string_view name);

// Where a named profile's numbers come from: fitted, measured, stated or assumed. Throw like those.
std::string_view network_source(std::string_view name);
std::string_view compute_source(std::string_view name);

// Every field with its value, in the order of the struct.
spec::FieldValues field_values(const NetworkProfile& network);
spec::FieldValues field_values(const ComputeProfile& compute);

// Checked copies with some fields changed. Throw std::invalid_argument naming the field, its range
// and the given value.
NetworkProfile with_fields(NetworkProfile network, const spec::FieldValues& values);
ComputeProfile with_fields(ComputeProfile compute, const spec::FieldValues& values);

}  // namespace aero::mpc

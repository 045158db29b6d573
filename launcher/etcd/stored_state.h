#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/rendezvous/job_record.h"

// What ddp-run stores in etcd. It is JSON, so that people can read it with etcdctl. Pure.
//   PREFIX JOB_ID /leader   which ddp-run coordinates the job; ends with that one's lease
//   PREFIX JOB_ID /state    the JobRecord, and how many coordinators the job has had
namespace ddp::etcd {

struct Leader {
  std::string node_id;
  std::string host;     // For people.
  std::string address;  // Numeric, where its rendezvous daemon listens.
  int port = 0;

  bool operator==(const Leader&) const = default;
};

struct StoredState {
  rendezvous::JobRecord record;
  int coordinators = 0;
};

struct Keys {
  std::string leader;
  std::string state;
};
Keys keys_of(std::string_view prefix, std::string_view job_id);

std::string to_json(const Leader& leader);
std::string to_json(const StoredState& state);
// kCorrupt for anything that to_json() did not write. Unknown members are ignored and absent ones
// get their defaults, so that nodes of different versions understand each other.
Result<Leader> parse_leader(std::string_view json);
Result<StoredState> parse_state(std::string_view json);

}  // namespace ddp::etcd

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp {

// The beginning of every operation: each rank shows what it is about to do, and goes on once the
// ranks of its node and its neighbours in the lane have shown the same. After it every staging slot
// is free, because all ranks of the node are through with the operation before.
//
// A payload of up to kSmallBytes travels with the record; payloads of the node's ranks can be read
// until this rank enters its next operation.
class Entry {
 public:
  // Shows the record. `number` counts the operations of the segment.
  Entry(Transport& transport, const OpRecord& record, std::uint32_t number, const void* payload,
        std::size_t payload_bytes);
  Progress step();

  // Who is missing, for the message of a timeout, and the first of them.
  std::string missing() const;
  Rank first_missing() const;

 private:
  struct Greeting {
    std::uint64_t magic =
        0x5041524750445021;  // Told apart from data that belongs to another operation.
    OpRecord record;
  };
  struct Neighbour {
    Link* link = nullptr;
    Piece sending;
    Piece receiving;
    Greeting greeting;
    bool sent = false;
    bool received = false;
  };

  Progress step_local();
  Progress step_neighbour(Neighbour& neighbour);
  Progress compare(const OpRecord& theirs, Rank rank);

  Transport& transport_;
  OpRecord record_;
  Greeting greeting_;
  std::uint32_t number_;
  int local_seen_ = 0;  // Local ranks below it have shown the same record.
  Neighbour neighbours_[2];
};

}  // namespace ddp

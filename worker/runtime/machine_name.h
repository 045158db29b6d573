#pragma once

#include <string>

namespace ddp::runtime {

// Who can hand this process a descriptor: processes of the same boot of the same machine, of one
// network namespace (to which abstract sockets belong) and of one user.
struct MachineName {
  std::string boot;     // Of the kernel.
  std::string network;  // The network namespace.
  std::string user;     // The effective user's number.
  std::string apart;    // DDP_VIRTUAL_NODE, which makes one machine act as several.

  // What keeps two processes from sharing memory, for people: "they run on different machines".
  // Empty if nothing does.
  std::string difference(const MachineName& other) const;
  friend bool operator==(const MachineName&, const MachineName&) = default;
};

// Of this process. A part that the system does not tell is random, so that it equals no other.
MachineName machine_name();

// One word, and back. An unreadable word gives an empty name.
std::string to_word(const MachineName& name);
MachineName machine_name_of(const std::string& word);

}  // namespace ddp::runtime

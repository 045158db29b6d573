#pragma once

#include <string>

#include "launcher/check/verdict/facts.h"

namespace ddp::check {

// The node that is looked at, and what the job wants of it.
struct Subject {
  std::string host;  // Its name, for people.
  int workers = 1;
  int world_size = 1;
  int nodes = 1;
  std::string check_dir;  // Empty: no folder is looked at.
};

// Looks at what needs no other node: memory, limits, the own name, the folder, GPUs. Takes as long
// as the folder (see probe_folder) and the name service take, and some milliseconds. Only while
// there is one thread.
LocalFacts probe_node(const Subject& subject);

}  // namespace ddp::check

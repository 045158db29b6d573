#pragma once

#include <string>
#include <vector>

#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// The names of nodes that have not come yet, "; missing: node3, node7". `expected` names all nodes
// of the job. Empty if nobody is missing, if the nodes use other names for themselves, or if they
// are too many for the message to name them all. Names are compared up to the first dot. Pure.
std::string missing_hosts(const std::vector<std::string>& expected, const wire::Waiting& waiting);

}  // namespace ddp::agent

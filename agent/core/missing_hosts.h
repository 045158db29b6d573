#pragma once

#include <string>
#include <vector>

#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// The names of nodes that are still to come, "; missing: node3, node7", where `expected` names all
// nodes of the job. Empty where they cannot be told: nobody is missing, the nodes call themselves
// otherwise, or they are too many for the message to name them all. Names agree if they do up to
// the first dot. Pure.
std::string missing_hosts(const std::vector<std::string>& expected, const wire::Waiting& waiting);

}  // namespace ddp::agent

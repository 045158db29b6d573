#pragma once

#include "launcher/hosts/parent_link.h"

namespace ddp::hosts {

// What a ddp-run does whose order names more than its own host: starts its own part and those of
// the others, and passes signals down and output and reports up, until all have ended. Gives the
// exit status.
int run_branch(ParentLink& parent);

}  // namespace ddp::hosts

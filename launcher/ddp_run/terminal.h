#pragma once

namespace ddp::run {

// Whether this descriptor is a terminal that can show a status line, and this process has it to
// itself: not in the background, as one of several would be.
bool can_show_status(int fd);

}  // namespace ddp::run

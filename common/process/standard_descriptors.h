#pragma once

namespace ddp {

// Opens /dev/null as descriptors 0 to 2 where they are closed. Call it first in main(): otherwise a
// pipe or the event loop's own descriptor gets one of these numbers, and becomes somebody's input
// or output.
void fill_standard_descriptors();

}  // namespace ddp

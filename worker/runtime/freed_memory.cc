#include "worker/runtime/freed_memory.h"

#include <malloc.h>

namespace ddp {

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace ddp

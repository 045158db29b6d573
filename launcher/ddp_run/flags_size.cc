// How many nodes and workers.
#include <tuple>

#include "launcher/ddp_run/flag_reader.h"
#include "launcher/ddp_run/flag_values.h"

namespace ddp::run {

void read_size_flags(FlagReader& reader, Options& options) {
  options.standalone = reader.has("standalone");
  if (auto range = reader.value<std::pair<int, int>>("nnodes", parse_node_range)) {
    std::tie(options.min_nodes, options.max_nodes) = *range;
  }
  reader.take("nproc-per-node", parse_process_count, options.nproc);
}

}  // namespace ddp::run

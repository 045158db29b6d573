// Flags about the number of nodes and workers, and about their devices.
#include <tuple>
#include <utility>

#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {
namespace {

// There is one worker for each device unless --nproc-per-node says otherwise.
void read_devices(FlagReader& reader, Options& options) {
  const GivenFlag* given = reader.find("devices");
  reader.take("devices", parse_devices, options.devices);
  if (given == nullptr) return;
  options.devices_flag = given->shown;
  if (!reader.has("nproc-per-node")) options.nproc.kind = ProcessCount::Kind::kAccelerator;
  if (options.nproc.accelerator != "gpu")
    reader.wrong(reader.find("nproc-per-node")->shown,
                 "contradicts {}, which names CUDA devices; leave one of them out", given->shown);
}

void check_virtual_local_rank(FlagReader& reader, const Options& options) {
  if (!options.spec.virtual_local_rank) return;
  const GivenFlag* standby = reader.find("standby");
  if (standby == nullptr || standby->value == "0") return;
  reader.wrong(reader.find("virtual-local-rank")->shown,
               "contradicts --standby, whose workers have no device of their own before they take "
               "a place; leave one of them out");
}

}  // namespace

void read_size_flags(FlagReader& reader, Options& options) {
  options.standalone = reader.has("standalone");
  if (auto range = reader.value<std::pair<int, int>>("nnodes", parse_node_range)) {
    std::tie(options.spec.rules.min_nodes, options.spec.rules.max_nodes) = *range;
  }
  reader.take("nproc-per-node", parse_process_count, options.nproc);
  read_devices(reader, options);
  options.spec.virtual_local_rank = reader.has("virtual-local-rank");
  check_virtual_local_rank(reader, options);
  reader.take(
      "numa-binding",
      [](const std::string& text) {
        return parse_word(text, {"node", "socket", "exclusive", "core-complex"});
      },
      options.spec.numa_binding);
}

}  // namespace ddp::flags

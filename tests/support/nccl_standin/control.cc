#include "tests/support/nccl_standin/control.h"

#include "tests/support/nccl_standin/state.h"

namespace ddp::standin {
namespace {

template <typename Change>
void change(Change apply) {
  const Lock lock(state().mutex);
  apply(state());
  state().changed.notify_all();
}

void reset() {
  change([](State& all) {
    all.failed_ranks.clear();
    all.hung_kernels.clear();
    all.hung_inits.clear();
    all.hung_aborts.clear();
    all.failed_devices.clear();
    ++all.released;
    all.linger_ms = 0;
    all.launch_delay_ms = 0;
    all.unique_id_result = 0;
    all.violations.clear();
  });
}

void fail_rank(int rank, int result) {
  change([&](State& all) { all.failed_ranks[rank] = result; });
}
void hang_kernels(int rank) {
  change([&](State& all) { all.hung_kernels.insert(rank); });
}
void hang_init(int rank) {
  change([&](State& all) { all.hung_inits.insert(rank); });
}
void hang_abort(int rank) {
  change([&](State& all) { all.hung_aborts.insert(rank); });
}
void release() {
  change([](State& all) { ++all.released; });
}
void linger(int milliseconds) {
  change([&](State& all) { all.linger_ms = milliseconds; });
}
void delay_launch(int milliseconds) {
  change([&](State& all) { all.launch_delay_ms = milliseconds; });
}
void fail_device(int device, int error) {
  change([&](State& all) { all.failed_devices[device] = error; });
}
void fail_unique_id(int result) {
  change([&](State& all) { all.unique_id_result = result; });
}

const char* violations() {
  static auto& copy = *new std::string;
  change([](State& all) { copy = all.violations; });
  return copy.c_str();
}

int live_objects() {
  std::size_t count = 0;
  change([&](State& all) {
    for (const Comm* comm : all.comms) count += comm->live ? 1U : 0U;
    count += all.streams.size() + all.events.size() + all.memory.size() + all.graphs.size();
  });
  return static_cast<int>(count);
}

int running_kernels() {
  int count = 0;
  change([&](State& all) { count = all.running_kernels; });
  return count;
}

}  // namespace
}  // namespace ddp::standin

STANDIN_API const ddp::standin::Control* standin_control() {
  using namespace ddp::standin;
  static const Control control{
      reset,        fail_rank,   hang_kernels,   hang_init,  hang_abort,   release,        linger,
      delay_launch, fail_device, fail_unique_id, violations, live_objects, running_kernels};
  return &control;
}

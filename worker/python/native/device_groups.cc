#include "worker/python/native/device_groups.h"

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "worker/python/native/cuda_streams.h"

namespace ddp::python {
namespace {

std::shared_ptr<const NcclLibrary> library() {
  static const auto loaded = NcclLibrary::load();
  if (!loaded) throw std::invalid_argument(loaded.error().message);
  return *loaded;
}

}  // namespace

DeviceGroup::DeviceGroup(const std::shared_ptr<Store>& store, const NcclGroupOptions& options,
                         c10::Device device)
    : group_(NcclGroup::make(library(), store, options)),
      stream_(external_stream(group_->stream(), device)) {}

DeviceGroup::~DeviceGroup() {
  try {
    if (last_) last_->wait();
  } catch (const CollectiveError&) {
    // Whoever waited for it has been told.
  }
}

void DeviceGroup::issued(WorkPtr work) {
  const std::lock_guard lock(mutex_);
  last_ = std::move(work);
}

DeviceGroups::DeviceGroups(std::shared_ptr<Store> store, std::string name,
                           std::shared_ptr<ProcessGroup> host, const ProcessGroupOptions& options)
    : store_(std::move(store)), name_(std::move(name)), host_(std::move(host)), options_(options) {}

std::shared_ptr<DeviceGroup> DeviceGroups::of(c10::Device device) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, group] : groups_) {
    if (known == device) return group;
  }
  NcclGroupOptions options;
  static_cast<ProcessGroupOptions&>(options) = options_;
  options.rank = host_->rank();
  options.size = host_->size();
  options.device = device.index();
  options.name = fmt::format("{}.{}", name_, groups_.size());
  options.host_group = host_;
  options.current_stream = [device] { return handle_of(python::current_stream(device)); };
  auto group = std::make_shared<DeviceGroup>(store_, options, device);
  groups_.emplace_back(device, group);
  return group;
}

std::vector<std::shared_ptr<DeviceGroup>> DeviceGroups::made() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<DeviceGroup>> all;
  for (const auto& [device, group] : groups_) all.push_back(group);
  return all;
}

}  // namespace ddp::python

#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "tests/support/hash_store.h"
#include "tests/support/nccl_standin/control.h"
#include "tests/support/on_ranks.h"
#include "tests/support/process.h"
#include "worker/collectives/half.h"
#include "worker/nccl/cuda_api.h"
#include "worker/nccl/nccl_group.h"

// NcclGroups over the stand-in library, whose ranks are threads of the test. The library allocates
// the memory, so a test can be the same for the real one (nccl_ranks.h).
namespace ddp::test {

inline std::shared_ptr<const NcclLibrary> load_library(const std::string& path) {
  auto library = NcclLibrary::load({path, path});
  DDP_CHECK(library.has_value(), "{}", library.error().message);
  return std::move(*library);
}

// The stand-in beside this program; tests can be run where they were not built.
inline std::string standin_file(const std::string& name = "libnccl_standin.so") {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

inline std::shared_ptr<const NcclLibrary> standin_library() { return load_library(standin_file()); }

inline const standin::Control& control() {
  void* handle = ::dlopen(standin_file().c_str(), RTLD_NOW | RTLD_LOCAL);
  DDP_CHECK(handle != nullptr, "{}", standin_file());
  using Function = const standin::Control* (*)();
  return *reinterpret_cast<Function>(::dlsym(handle, "standin_control"))();
}

// That the stand-in was used as NCCL and CUDA allow, and that all is freed. The thread that hears
// of another rank's failure may hold a group for a moment longer.
inline void expect_clean_standin() {
  EXPECT_TRUE(wait_until([] { return control().live_objects() == 0; }));
  EXPECT_STREQ(control().violations(), "");
}

// Resets the stand-in. Afterwards checks how it was used.
class StandinTest : public ::testing::Test {
 protected:
  void SetUp() override { control().reset(); }
  void TearDown() override {
    expect_clean_standin();
    control().reset();
  }
};

// Options for quick tests; `name` is used once in a store.
inline NcclGroupOptions nccl_options(Rank rank, int size, Round round = 0) {
  NcclGroupOptions options;
  options.rank = rank;
  options.size = size;
  options.round = round;
  options.device = rank;
  options.timeout = std::chrono::seconds(60);
  options.connect_timeout = std::chrono::seconds(60);
  options.abort_grace = std::chrono::seconds(20);
  return options;
}

using NcclGroups = std::vector<std::shared_ptr<NcclGroup>>;
using Tweak = std::function<void(NcclGroupOptions&)>;

// Element r is rank r's group. A failure of one is reported to all, as a host group would do. They
// end together.
class NcclWorld {
 public:
  NcclWorld(std::shared_ptr<const NcclLibrary> library, int size, const Tweak& tweak = {},
            std::shared_ptr<Store> store = std::make_shared<HashStore>(), Round round = 0)
      : groups_(static_cast<std::size_t>(size)) {
    NcclGroups made(groups_.size());
    on_ranks(size, [&](Rank rank) {
      NcclGroupOptions options = nccl_options(rank, size, round);
      options.on_abort = [this](const Failure& failure) { spread(failure); };
      if (tweak) tweak(options);
      made[static_cast<std::size_t>(rank)] = NcclGroup::make(library, store, options);
    });
    for (const auto& group : made) {
      if (!group) throw std::runtime_error("not every rank has its group");
    }
    const std::lock_guard lock(mutex_);
    groups_ = std::move(made);
  }
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;
  ~NcclWorld() { end(); }

  NcclGroup& operator[](Rank rank) { return *groups_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(groups_.size()); }
  void run(const std::function<void(NcclGroup&)>& body) {
    on_ranks(size(), [&](Rank rank) { body((*this)[rank]); });
  }
  // Destroys the rank's group.
  void end(Rank rank) {
    std::shared_ptr<NcclGroup> group;
    {
      const std::lock_guard lock(mutex_);
      group = std::move(groups_[static_cast<std::size_t>(rank)]);
    }
    group.reset();
  }
  void end() {
    on_ranks(size(), [&](Rank rank) { end(rank); });
  }

 private:
  void spread(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (group) group->abort_from_peer(failure);
    }
  }

  std::mutex mutex_;
  NcclGroups groups_;
};

inline std::vector<std::byte> encode(DType type, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(type));
  const auto put = [&](std::size_t i, auto value) {
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (type) {
      case DType::kU8:
        put(i, static_cast<std::uint8_t>(values[i]));
        break;
      case DType::kI8:
        put(i, static_cast<std::int8_t>(values[i]));
        break;
      case DType::kI32:
        put(i, static_cast<std::int32_t>(values[i]));
        break;
      case DType::kI64:
        put(i, static_cast<std::int64_t>(values[i]));
        break;
      case DType::kF16:
        put(i, collectives::f16_of_f32(static_cast<float>(values[i])));
        break;
      case DType::kBF16:
        put(i, collectives::bf16_of_f32(static_cast<float>(values[i])));
        break;
      case DType::kF32:
        put(i, static_cast<float>(values[i]));
        break;
      case DType::kF64:
        put(i, values[i]);
        break;
    }
  }
  return bytes;
}

inline std::vector<double> decode(DType type, const std::vector<std::byte>& bytes) {
  std::vector<double> values(bytes.size() / dtype_bytes(type));
  const auto get = [&](std::size_t i, auto value) {
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    return value;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (type) {
      case DType::kU8:
        values[i] = get(i, std::uint8_t{});
        break;
      case DType::kI8:
        values[i] = get(i, std::int8_t{});
        break;
      case DType::kI32:
        values[i] = get(i, std::int32_t{});
        break;
      case DType::kI64:
        values[i] = static_cast<double>(get(i, std::int64_t{}));
        break;
      case DType::kF16:
        values[i] = collectives::f32_of_f16(get(i, std::uint16_t{}));
        break;
      case DType::kBF16:
        values[i] = collectives::f32_of_bf16(get(i, std::uint16_t{}));
        break;
      case DType::kF32:
        values[i] = get(i, float{});
        break;
      case DType::kF64:
        values[i] = get(i, double{});
        break;
    }
  }
  return values;
}

// Elements in device memory of the group.
class DeviceArray {
 public:
  DeviceArray(NcclGroup& group, const NcclLibrary& library, DType type,
              const std::vector<double>& values)
      : library_(library),
        memory_(group.allocate(values.size() * dtype_bytes(type))),
        count_(values.size()),
        type_(type) {
    DDP_CHECK(memory_ != nullptr, "no device memory");
    const auto bytes = encode(type, values);
    const auto error = library_.cuda().memcpy(memory_.get(), bytes.data(), bytes.size(),
                                              cuda::kMemcpyHostToDevice);
    DDP_CHECK(error == cuda::kSuccess, "cudaMemcpy: {}", error);
  }

  Buffer buffer() const { return {memory_.get(), count_, type_}; }
  Buffer part(std::size_t begin, std::size_t count) const {
    return {memory_.get() + begin * dtype_bytes(type_), count, type_};
  }
  std::vector<double> values() const {
    std::vector<std::byte> bytes(count_ * dtype_bytes(type_));
    const auto error = library_.cuda().memcpy(bytes.data(), memory_.get(), bytes.size(),
                                              cuda::kMemcpyDeviceToHost);
    DDP_CHECK(error == cuda::kSuccess, "cudaMemcpy: {}", error);
    return decode(type_, bytes);
  }

 private:
  const NcclLibrary& library_;
  std::shared_ptr<std::byte> memory_;
  std::size_t count_;
  DType type_;
};

}  // namespace ddp::test

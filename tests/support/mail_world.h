#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/store/file_store.h"
#include "tests/support/worker_world.h"
#include "worker/runtime/post_office.h"

// Ranks that send each other messages, without a group around them.
namespace ddp::test {

constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);

inline runtime::PostOfficeOptions mail_options(std::chrono::milliseconds timeout) {
  runtime::PostOfficeOptions options;
  options.timeout = timeout;
  return options;
}

// All ranks of a world in this process; connections between nodes are TCP connections.
class MailWorld {
 public:
  explicit MailWorld(const std::vector<int>& nodes,
                     const runtime::PostOfficeOptions& options = mail_options(kPatience))
      : transports_(connected_transports(nodes)) {
    const auto store = std::make_shared<HashStore>();
    for (auto& transport : transports_)
      mail_.push_back(
          std::make_shared<runtime::PostOffice>(*transport, local_meeting(store), 0, options));
  }
  int size() const { return static_cast<int>(mail_.size()); }
  runtime::PostOffice& operator[](Rank rank) { return *mail_[static_cast<std::size_t>(rank)]; }
  transport::Transport& transport(Rank rank) {
    return *transports_[static_cast<std::size_t>(rank)];
  }
  void close(Rank rank) { mail_[static_cast<std::size_t>(rank)]->close(); }
  void run(const std::function<void(Rank)>& body) { on_ranks(size(), body); }

 private:
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::shared_ptr<runtime::PostOffice>> mail_;
};

// A process per rank, as in fork_ranks. The ranks connect through a file.
inline std::vector<pid_t> fork_mail(
    const std::vector<int>& nodes, const std::filesystem::path& store,
    const std::function<int(runtime::PostOffice&, transport::Transport&)>& body) {
  return fork_transports(nodes, [&](std::unique_ptr<transport::Transport> own) {
    const auto meeting = local_meeting(std::move(store::open_file_store(store)).value());
    const auto mail =
        std::make_shared<runtime::PostOffice>(*own, meeting, 0, mail_options(kPatience));
    return body(*mail, *own);
  });
}

inline std::string name_of_mail_world(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "nodes";
  for (const int size : info.param) name += "_" + std::to_string(size);
  return name;
}

// The message from rank `from` to rank `to` with a tag: no two messages have the same bytes.
inline std::uint8_t pattern(Rank from, Rank to, std::uint64_t tag, std::size_t i) {
  return static_cast<std::uint8_t>(i * 7 + i / 251 + static_cast<std::size_t>(from) * 31 +
                                   static_cast<std::size_t>(to) * 17 + tag * 13 + 1);
}

// Bytes in private memory, or in the arena of a rank.
class Data {
 public:
  explicit Data(std::size_t bytes, transport::Arena* arena = nullptr) : bytes_(bytes) {
    memory_ = arena != nullptr ? arena->allocate(bytes)
                               : std::shared_ptr<std::byte>(new std::byte[bytes + 1],
                                                            std::default_delete<std::byte[]>());
    std::fill_n(memory_.get(), bytes, std::byte{0xEE});
  }
  Buffer buffer() { return {memory_.get(), bytes_, DType::kU8}; }
  Data& fill(Rank from, Rank to, std::uint64_t tag) {
    for (std::size_t i = 0; i < bytes_; ++i)
      memory_.get()[i] = std::byte{pattern(from, to, tag, i)};
    return *this;
  }
  // The index of the first wrong byte; -1 if there is none.
  std::ptrdiff_t wrong(Rank from, Rank to, std::uint64_t tag) const {
    for (std::size_t i = 0; i < bytes_; ++i) {
      if (memory_.get()[i] != std::byte{pattern(from, to, tag, i)})
        return static_cast<std::ptrdiff_t>(i);
    }
    return -1;
  }

 private:
  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
};

inline Buffer floats(std::vector<float>& values) {
  return {values.data(), values.size(), DType::kF32};
}

// The CollectiveError that a call throws; empty text if it throws none.
inline CollectiveError error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CollectiveError& error) {
    return error;
  }
  return {"", std::error_code(), -1};
}

}  // namespace ddp::test

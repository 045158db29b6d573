#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

#include <string.h>

namespace ddp::wire {

// The text in an array of a record. It ends with a zero byte unless it fills the array.
template <std::size_t Size>
std::string_view text_of(const char (&text)[Size]) {
  return {text, ::strnlen(text, Size)};
}

// A record in shared memory that may be read while it is written, and whose writer may die at any
// moment. One writer at a time: the one that makes `version` odd. It makes it even again when it
// has finished. A reader uses the words if it finds the same even version before and after.
template <typename Record>
struct SharedEntry {
  static constexpr std::size_t kWords = sizeof(Record) / sizeof(std::uint64_t);
  static_assert(sizeof(Record) == kWords * sizeof(std::uint64_t));
  static_assert(std::is_trivially_copyable_v<Record>);

  // Grants the right to write, unless somebody else is writing.
  class Writing {
   public:
    explicit Writing(SharedEntry& entry) : entry_(entry) {
      version_ = entry_.version.load(std::memory_order_relaxed);
      granted_ = version_ % 2 == 0 && entry_.version.compare_exchange_strong(
                                          version_, version_ + 1, std::memory_order_acquire);
      std::atomic_thread_fence(std::memory_order_release);
    }
    ~Writing() {
      if (granted_) entry_.version.store(version_ + 2, std::memory_order_release);
    }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;
    bool granted() const { return granted_; }

   private:
    SharedEntry& entry_;
    std::uint32_t version_;
    bool granted_;
  };

  // Only while Writing grants it.
  void put(const Record& record) {
    std::uint64_t values[kWords];
    std::memcpy(values, &record, sizeof(record));
    for (std::size_t i = 0; i < kWords; ++i) words[i].store(values[i], std::memory_order_relaxed);
  }

  // Likewise: what has been put, while nobody else can write.
  Record get() const {
    std::uint64_t values[kWords];
    for (std::size_t i = 0; i < kWords; ++i) values[i] = words[i].load(std::memory_order_relaxed);
    Record record;
    std::memcpy(&record, values, sizeof(record));
    return record;
  }

  // Empty if nothing has been written, or if it is being written.
  std::optional<Record> read() const {
    const std::uint32_t before = version.load(std::memory_order_acquire);
    if (before == 0 || before % 2 != 0) return {};
    const Record record = get();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version.load(std::memory_order_relaxed) != before) return {};
    return record;
  }

  std::atomic<std::uint32_t> version{0};
  std::uint32_t reserved = 0;
  std::atomic<std::uint64_t> words[kWords] = {};
};

}  // namespace ddp::wire

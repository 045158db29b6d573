#pragma once

#include <condition_variable>
#include <mutex>

#include "common/store/key_map.h"
#include "common/store/store.h"

namespace ddp {

// A store inside one process, for ranks that are threads. Any number of threads may use one object.
class HashStore final : public Store {
 public:
  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Timeout timeout) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;

 private:
  void put(std::string_view key, std::string_view value);
  Result<void> wait_locked(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
                           Timeout timeout);

  std::mutex mutex_;
  std::condition_variable changed_;
  KeyMap map_;  // Guarded by mutex_.
};

}  // namespace ddp

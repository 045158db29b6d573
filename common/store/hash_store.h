#pragma once

#include <condition_variable>
#include <mutex>

#include "common/base/key_map.h"
#include "common/store/store.h"

namespace ddp {

// A store inside one process, for ranks that are threads. Any number of threads may use one object.
class HashStore final : public Store {
 public:
  HashStore() : shared_(std::make_shared<Shared>()) {}

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Timeout timeout) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<void> wait(const std::vector<std::string>& keys, Timeout timeout) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;
  Result<void> append(std::string_view key, std::string_view value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Timeout timeout) override;
  Result<void> multi_set(const std::vector<std::string>& keys,
                         const std::vector<std::string>& values) override;
  Result<void> queue_push(std::string_view key, std::string_view value) override;
  Result<std::string> queue_pop(std::string_view key, Timeout timeout) override;
  Result<std::int64_t> queue_len(std::string_view key) override;
  Result<void> barrier(std::string_view key, int world_size, Timeout timeout) override;
  Result<std::unique_ptr<Store>> clone() override;

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    KeyMap map;  // Guarded by mutex.
  };
  explicit HashStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  // Changes the map and wakes the threads that wait for it.
  template <typename Change>
  auto change(Change&& change);
  // The lock, held after the wait for ready(map), and whether ready(map) held in time.
  struct Waited {
    std::unique_lock<std::mutex> lock;
    bool came = false;
  };
  template <typename Ready>
  Waited wait_for(Timeout timeout, Ready&& ready);

  std::shared_ptr<Shared> shared_;  // Shared by all clones.
};

}  // namespace ddp

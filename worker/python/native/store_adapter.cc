#include "worker/python/native/store_adapter.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "common/store/store_errors.h"
#include "common/wait/wait_interrupt.h"

namespace ddp::python {
namespace {

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{10'000};

// What the call gives, or the exception that it throws as an error.
template <typename Call>
auto guarded(const Call& call) -> Result<decltype(call())> {
  try {
    return call();
  } catch (const c10::Error& error) {
    return Error{Errc::kPeerLost, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return Error{Errc::kPeerLost, error.what()};
  }
}

}  // namespace

Result<void> StoreAdapter::set(std::string_view key, std::string_view value) {
  const auto done = guarded([&] {
    store_->set(std::string(key), bytes_of(value));
    return true;
  });
  if (!done) return done.error();
  return {};
}

Result<std::string> StoreAdapter::get(std::string_view key, Timeout timeout) {
  if (auto there = wait({std::string(key)}, timeout); !there) return there.error();
  return guarded([&] { return text_of(store_->get(std::string(key))); });
}

Result<std::vector<std::string>> StoreAdapter::multi_get(const std::vector<std::string>& keys,
                                                         Timeout timeout) {
  if (keys.empty()) return std::vector<std::string>();
  if (auto there = wait(keys, timeout); !there) return there.error();
  return guarded([&] {
    std::vector<std::string> values;
    if (store_->hasExtendedApi()) {
      for (const auto& value : store_->multiGet(keys)) values.push_back(text_of(value));
    } else {
      for (const std::string& key : keys) values.push_back(text_of(store_->get(key)));
    }
    return values;
  });
}

Result<std::int64_t> StoreAdapter::add(std::string_view key, std::int64_t delta) {
  return guarded([&] { return store_->add(std::string(key), delta); });
}

Result<bool> StoreAdapter::check(const std::vector<std::string>& keys) {
  return guarded([&] { return store_->check(keys); });
}

// Asks again and again: PyTorch's own wait logs a warning whenever it times out, and callers wait
// in short parts.
Result<void> StoreAdapter::wait(const std::vector<std::string>& keys, Timeout timeout) {
  const TimePoint deadline = Clock::now() + timeout;
  for (std::chrono::microseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const auto there = check(keys);
    if (!there) return there.error();
    if (*there) return {};
    if (WaitInterrupt::raised()) return store::given_up("PyTorch's store");
    if (Clock::now() >= deadline) {
      return make_error(Errc::kTimeout, "the store has no key {} after {} ms",
                        fmt::join(keys, ", "), timeout.count());
    }
    std::this_thread::sleep_for(pause);
  }
}

Result<std::string> StoreAdapter::compare_set(std::string_view key, std::string_view expected,
                                              std::string_view desired) {
  return guarded([&] {
    return text_of(store_->compareSet(std::string(key), bytes_of(expected), bytes_of(desired)));
  });
}

Result<bool> StoreAdapter::delete_key(std::string_view key) {
  return guarded([&] { return store_->deleteKey(std::string(key)); });
}

Result<std::int64_t> StoreAdapter::num_keys() {
  return guarded([&] { return store_->getNumKeys(); });
}

Result<std::vector<std::string>> StoreAdapter::list_keys() {
  return make_error(Errc::kInvalidArgument, "PyTorch's stores do not list their keys");
}

}  // namespace ddp::python

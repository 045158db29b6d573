#include "worker/python/native/failures.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>

#include "common/base/errc.h"
#include "common/base/parse_number.h"
#include "worker/runtime/worker_environment.h"

namespace ddp::python {
namespace {

// More than the groups of a process that fail together and are seen to.
constexpr std::size_t kTextsKept = 16;

struct Consequences {
  std::mutex mutex;
  std::deque<std::string> texts;  // The latest.
};

Consequences& consequences() {
  static Consequences one;
  return one;
}

// As run_elastic() and ddp-train tell it.
bool is_of_another_rank(const CollectiveError& error) {
  if (error.code == Errc::kAborted || error.code == Errc::kPeerLost || error.code == Errc::kTimeout)
    return true;
  const auto own = parse_whole_number<Rank>(process_variable("RANK").value_or(""));
  return error.suspect_rank >= 0 && own && error.suspect_rank != *own;
}

void remember(const CollectiveError& error) {
  if (!is_of_another_rank(error)) return;
  Consequences& known = consequences();
  const std::lock_guard lock(known.mutex);
  const std::string text = error.what();
  if (std::find(known.texts.begin(), known.texts.end(), text) != known.texts.end()) return;
  known.texts.push_back(text);
  if (known.texts.size() > kTextsKept) known.texts.pop_front();
}

}  // namespace

std::exception_ptr as_backend_error(const CollectiveError& error) {
  remember(error);
  const std::string text = error.what();
  try {
    TORCH_CHECK_WITH(DistBackendError, false, text);
  } catch (...) {
    return std::current_exception();
  }
}

std::exception_ptr as_backend_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const CollectiveError& error) {
    return as_backend_error(error);
  } catch (...) {
    return failure;
  }
}

bool is_consequence(std::string_view text) {
  Consequences& known = consequences();
  const std::lock_guard lock(known.mutex);
  return std::any_of(known.texts.begin(), known.texts.end(), [text](const std::string& one) {
    return text.find(one) != std::string_view::npos;
  });
}

}  // namespace ddp::python

#pragma once

#include <string>
#include <system_error>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/errc.h"

namespace ddp {

// Why an operation failed. The code is for the program. The message is for people: it names the
// object, the limit and what to do.
struct Error {
  std::error_code code;
  std::string message;
};

// A value or an Error, with the member names of C++23's std::expected. Expected failures are
// returned in it; only worker/ throws exceptions, at its public edge. Reading the side that is not
// there is a broken invariant.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& value() & {
    DDP_CHECK(has_value(), "{}", std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  const T& value() const& {
    DDP_CHECK(has_value(), "{}", std::get<1>(state_).message);
    return std::get<0>(state_);
  }
  T&& value() && {
    DDP_CHECK(has_value(), "{}", std::get<1>(state_).message);
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const {
    DDP_CHECK(!has_value(), "the result holds a value");
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

// Success without a value: `return {};`
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error)
      : error_(std::move(error)), ok_(false) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const {
    DDP_CHECK(!ok_, "the result holds a value");
    return error_;
  }

 private:
  Error error_;
  bool ok_ = true;
};

// Error with a formatted message: make_error(Errc::kTimeout, "rank {} after {} ms", rank, ms).
template <typename Code, typename... Args>
Error make_error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{std::error_code(code), fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace ddp

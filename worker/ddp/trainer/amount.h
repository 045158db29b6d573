#pragma once

#include <cstdint>
#include <string>

namespace ddp {

// A number of batches (an integer), or a part of all batches (a floating-point number up to 1.0),
// as in Lightning: 1 is one batch, 1.0 is all of them.
class Amount {
 public:
  constexpr Amount(int batches) : batches_(batches) {}  // NOLINT(google-explicit-constructor)
  constexpr Amount(std::int64_t batches)
      : batches_(batches) {}                      // NOLINT(google-explicit-constructor)
  constexpr Amount(double part) : part_(part) {}  // NOLINT(google-explicit-constructor)

  constexpr bool is_valid() const { return part_ >= 0 && part_ <= 1 && batches_ >= kPart; }
  // The number of batches out of `all`: at most all, and at least one for a part above 0.
  constexpr std::int64_t of(std::int64_t all) const {
    std::int64_t wanted = batches_;
    if (batches_ == kPart) {
      wanted = static_cast<std::int64_t>(part_ * static_cast<double>(all));
      if (wanted == 0 && part_ > 0) wanted = 1;
    }
    return wanted < all ? wanted : all;
  }
  std::string text() const {
    return batches_ == kPart ? std::to_string(part_) : std::to_string(batches_);
  }

 private:
  static constexpr std::int64_t kPart = -1;
  std::int64_t batches_ = kPart;
  double part_ = 1;
};

}  // namespace ddp

#pragma once

namespace ddp {

class Reducer;

// While it lives, backward adds to the local gradients only; the first backward after it reduces
// what has been accumulated. All ranks must use it around the same backwards. Nests.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Reducer& reducer_;
  bool before_;
};

}  // namespace ddp

#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace ddp {

template <typename Signature>
class InlineFunction;

// A std::function that is called once or a few times and never copied. The callable need not be
// copyable, and one of up to kRoom bytes needs no allocation.
template <typename Result, typename... Arguments>
class InlineFunction<Result(Arguments...)> {
 public:
  static constexpr std::size_t kRoom = 48;

  template <typename Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, InlineFunction>)
      InlineFunction(Function&& function) {
    using Plain = std::remove_cvref_t<Function>;
    if constexpr (sizeof(Plain) <= kRoom && alignof(Plain) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Plain>) {
      new (room_) Plain(std::forward<Function>(function));
      kind_ = &kind_of<Plain>;
    } else {
      new (room_) Boxed<Plain>{std::make_unique<Plain>(std::forward<Function>(function))};
      kind_ = &kind_of<Boxed<Plain>>;
    }
  }
  InlineFunction(InlineFunction&& other) noexcept { take(other); }
  InlineFunction& operator=(InlineFunction&& other) noexcept {
    if (this == &other) return *this;
    reset();
    take(other);
    return *this;
  }
  ~InlineFunction() { reset(); }

  // Not after a move from this object.
  Result operator()(Arguments... arguments) {
    return kind_->call(room_, std::forward<Arguments>(arguments)...);
  }

 private:
  template <typename Plain>
  struct Boxed {
    std::unique_ptr<Plain> plain;
    Result operator()(Arguments... arguments) {
      return (*plain)(std::forward<Arguments>(arguments)...);
    }
  };
  struct Kind {
    Result (*call)(std::byte* room, Arguments&&... arguments);
    void (*move)(std::byte* from, std::byte* to) noexcept;  // Destroys the moved-from object.
    void (*destroy)(std::byte* room) noexcept;
  };
  template <typename Plain>
  static Plain& in(std::byte* room) {
    return *std::launder(reinterpret_cast<Plain*>(room));
  }
  template <typename Plain>
  static constexpr Kind kind_of = {[](std::byte* room, Arguments&&... arguments) -> Result {
                                     return in<Plain>(room)(std::forward<Arguments>(arguments)...);
                                   },
                                   [](std::byte* from, std::byte* to) noexcept {
                                     new (to) Plain(std::move(in<Plain>(from)));
                                     in<Plain>(from).~Plain();
                                   },
                                   [](std::byte* room) noexcept { in<Plain>(room).~Plain(); }};

  void take(InlineFunction& other) noexcept {
    kind_ = std::exchange(other.kind_, nullptr);
    if (kind_ != nullptr) kind_->move(other.room_, room_);
  }
  void reset() noexcept {
    if (kind_ != nullptr) std::exchange(kind_, nullptr)->destroy(room_);
  }

  alignas(std::max_align_t) std::byte room_[kRoom];
  const Kind* kind_ = nullptr;
};

}  // namespace ddp

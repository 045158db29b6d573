#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace ddp {

// First in, first out. It keeps its memory, so a queue that was as long before allocates nothing.
template <typename T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& front() { return items_[first_]; }
  // The item `index` places behind the front.
  T& operator[](std::size_t index) { return items_[place(index)]; }

  void push_back(T item) {
    if (size_ == items_.size()) grow();
    items_[place(size_)] = std::move(item);
    ++size_;
  }
  T pop_front() {
    T item = std::exchange(items_[first_], T());
    first_ = place(1);
    --size_;
    return item;
  }

 private:
  std::size_t place(std::size_t index) const { return (first_ + index) % items_.size(); }
  void grow() {
    std::vector<T> larger(items_.empty() ? 8 : 2 * items_.size());
    for (std::size_t index = 0; index < size_; ++index) larger[index] = std::move((*this)[index]);
    items_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace ddp

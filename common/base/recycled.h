#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>

// Memory of objects that come and go with every operation. The memory of a freed object is kept for
// the next one, so that a steady state allocates nothing. It is kept until the process ends, and
// never exceeds the most that was in use at once. Any thread. (Under AddressSanitizer nothing is
// kept, so that it finds uses after free.)
namespace ddp {

// Pieces of memory of one size.
template <std::size_t kBytes>
class RecycledBlocks {
 public:
  static void* take() {
#ifndef __SANITIZE_ADDRESS__
    List& list = RecycledBlocks::list();
    const std::lock_guard lock(list.mutex);
    if (Block* const block = list.first) {
      list.first = block->next;
      return block;
    }
#endif
    return ::operator new(sizeof(Block));
  }

  static void give(void* memory) noexcept {
#ifndef __SANITIZE_ADDRESS__
    List& list = RecycledBlocks::list();
    const std::lock_guard lock(list.mutex);
    auto* const block = new (memory) Block;  // Leaves its other bytes as they are.
    block->next = list.first;
    list.first = block;
#else
    ::operator delete(memory);
#endif
  }

 private:
  struct Block {
    Block* next;
    std::byte rest[kBytes > sizeof(void*) ? kBytes - sizeof(void*) : 1];
  };
  struct List {
    std::mutex mutex;
    Block* first = nullptr;
  };
  static List& list() {
    // Never destroyed: threads may outlive static objects.
    static auto* const instance = new List;
    return *instance;
  }
};

// For std::allocate_shared.
template <typename T>
class RecyclingAllocator {
 public:
  using value_type = T;
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

  RecyclingAllocator() = default;
  template <typename Other>
  RecyclingAllocator(const RecyclingAllocator<Other>& /*other*/) {}

  T* allocate(std::size_t count) {
    if (count != 1) return std::allocator<T>().allocate(count);
    return static_cast<T*>(RecycledBlocks<sizeof(T)>::take());
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    if (count != 1) return std::allocator<T>().deallocate(memory, count);
    RecycledBlocks<sizeof(T)>::give(memory);
  }
  bool operator==(const RecyclingAllocator& /*other*/) const { return true; }
};

// A base for classes whose objects others make with `new`, for example std::function.
template <typename T>
struct Recycled {
  static void* operator new(std::size_t bytes) {
    return bytes == sizeof(T) ? RecycledBlocks<sizeof(T)>::take() : ::operator new(bytes);
  }
  static void operator delete(void* memory, std::size_t bytes) noexcept {
    if (bytes == sizeof(T)) return RecycledBlocks<sizeof(T)>::give(memory);
    ::operator delete(memory);
  }
};

}  // namespace ddp

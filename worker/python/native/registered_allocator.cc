#include "worker/python/native/registered_allocator.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

namespace ddp::python {
namespace {

// Below it, copying is cheaper than what reaching into another rank's memory takes.
constexpr std::size_t kLeastBytes = std::size_t{64} << 10;
// Programs with more sizes than that have no typical ones.
constexpr std::size_t kMostSizes = 1024;

class RegisteredAllocator final : public c10::Allocator {
 public:
  explicit RegisteredAllocator(c10::Allocator& ordinary) : ordinary_(ordinary) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= kLeastBytes && has_sizes_.load(std::memory_order_relaxed)) {
      const std::lock_guard lock(mutex_);
      if (sizes_.contains(bytes)) {
        if (void* const memory = take(arena_.lock(), bytes)) return owned(memory);
      }
    }
    return ordinary_.allocate(bytes);
  }

  // Null if there is no room.
  c10::DataPtr allocate_from(const std::shared_ptr<transport::Arena>& arena, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* const memory = take(arena, bytes);
    return memory != nullptr ? owned(memory) : c10::DataPtr();
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void learn(const std::shared_ptr<transport::Arena>& arena, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (arena_.lock() != arena) arena_ = arena;
    if (sizes_.contains(bytes)) return;
    if (sizes_.size() == kMostSizes) sizes_.clear();
    sizes_.insert(bytes);
    has_sizes_.store(true, std::memory_order_relaxed);
  }

  bool holds(const void* memory) {
    const std::lock_guard lock(mutex_);
    return blocks_.contains(memory);
  }

  // Around fork(). The parent waits until the child has its copies, so that it cannot change what
  // is being copied.
  void before_fork() {
    mutex_.lock();
    // Without descriptors for a pipe, the parent does not wait.
    if (!blocks_.empty() && ::pipe2(pipe_, O_CLOEXEC) != 0) pipe_[0] = pipe_[1] = -1;
  }
  void after_fork_in_parent() {
    if (pipe_[1] >= 0) {
      ::close(pipe_[1]);
      char byte = 0;
      while (::read(pipe_[0], &byte, 1) < 0 && errno == EINTR) {
      }
      ::close(pipe_[0]);
      pipe_[0] = pipe_[1] = -1;
    }
    mutex_.unlock();
  }
  void after_fork_in_child() {
    for (auto& [memory, block] : blocks_) {
      copy_in_place(const_cast<void*>(memory), block.bytes);
      // Not to be given back: another thread may have held the arena's lock during fork().
      new std::shared_ptr<std::byte>(std::move(block.memory));
    }
    arena_.reset();
    sizes_.clear();
    has_sizes_ = false;
    for (int& end : pipe_) {
      if (end >= 0) ::close(std::exchange(end, -1));
    }
    mutex_.unlock();
  }

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;  // Null in a forked child.
    std::size_t bytes = 0;
  };

  static c10::DataPtr owned(void* memory) { return {memory, memory, &release, at::kCPU}; }
  static void release(void* memory);

  // Needs mutex_.
  void* take(const std::shared_ptr<transport::Arena>& arena, std::size_t bytes) {
    if (!arena || bytes == 0) return nullptr;
    auto memory = arena->allocate(bytes, transport::Arena::Backing::kAtUse);
    if (!memory) return nullptr;
    void* const begin = memory.get();
    blocks_.emplace(begin, Block{std::move(memory), bytes});
    c10::profiledCPUMemoryReporter().New(begin, bytes);
    return begin;
  }

  // Puts private memory with the same content in the place of shared memory.
  static void copy_in_place(void* memory, std::size_t bytes) {
    void* const copy =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy != MAP_FAILED) {
      std::memcpy(copy, memory, bytes);
      if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory) != MAP_FAILED) return;
    }
    // Going on, the child would write into its parent's tensors.
    std::fprintf(stderr,
                 "ddp_run: a forked process has no room for its copy of a tensor of %zu bytes, and "
                 "ends; fork it before the process group is made, or use the start method spawn\n",
                 bytes);
    ::_exit(1);
  }

  c10::Allocator& ordinary_;
  std::atomic<bool> has_sizes_{false};
  std::mutex mutex_;                       // Guards what follows.
  std::weak_ptr<transport::Arena> arena_;  // Of the latest operation.
  std::set<std::size_t> sizes_;            // In bytes.
  std::map<const void*, Block> blocks_;    // What has been allocated, by its begin.
  int pipe_[2] = {-1, -1};
};

RegisteredAllocator& allocator() {
  // Never destroyed: tensors may outlive static objects.
  static auto* const instance = new RegisteredAllocator(*c10::GetCPUAllocator());
  return *instance;
}

void RegisteredAllocator::release(void* memory) {
  RegisteredAllocator& self = allocator();
  Block block;
  {
    const std::lock_guard lock(self.mutex_);
    const auto found = self.blocks_.find(memory);
    if (found != self.blocks_.end()) {
      block = std::move(found->second);
      self.blocks_.erase(found);
    }
  }
  if (block.bytes == 0) {
    self.ordinary_.raw_deleter()(memory);
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(memory);
  if (!block.memory) ::madvise(memory, block.bytes, MADV_DONTNEED);
}

}  // namespace

void install_registered_allocator() {
  c10::SetCPUAllocator(&allocator());
  ::pthread_atfork([] { allocator().before_fork(); }, [] { allocator().after_fork_in_parent(); },
                   [] { allocator().after_fork_in_child(); });
}

void learn_size(const std::shared_ptr<transport::Arena>& arena, const at::Tensor& tensor) {
  const std::size_t bytes = tensor.nbytes();
  if (bytes < kLeastBytes || tensor.storage().nbytes() != bytes) return;
  allocator().learn(arena, bytes);
}

at::Tensor allocate_registered(const std::shared_ptr<transport::Arena>& arena, std::int64_t size,
                               const at::TensorOptions& options) {
  at::Tensor tensor = at::empty({0}, options);
  const auto bytes = static_cast<std::size_t>(size) * tensor.itemsize();
  c10::DataPtr memory = allocator().allocate_from(arena, bytes);
  if (memory == nullptr) return at::empty({size}, options);
  tensor.set_(c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory), &allocator(),
                           /*resizable=*/true),
              0, {size}, {1});
  return tensor;
}

bool is_registered(const at::Tensor& tensor) {
  return tensor.has_storage() && allocator().holds(tensor.storage().data());
}

}  // namespace ddp::python

#include "worker/ddp/state/commit_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/TensorOptions.h>

#include "worker/ddp/tensors/pinned_memory.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ddp::elastic {
namespace {

constexpr std::size_t kTensorAlignment = 64;  // Of tensors; a cache line.
constexpr std::size_t kHugePage = 2u << 20;   // Of x86; elsewhere it is just a round number.
constexpr std::size_t kSmall = 64u << 10;     // Up to that the caches are the right place.
constexpr std::size_t kPiece = 1u << 20;      // Of what a thread takes at once.

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : bytes_(round_up(bytes, kHugePage) + kHugePage) {
    void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    all_ = static_cast<std::byte*>(at);
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    begin_ = all_ + (round_up(address, kHugePage) - address);
    (void)::madvise(begin_, bytes_ - kHugePage, MADV_HUGEPAGE);  // Best effort.
    touch(bytes);
    pinned_.pin({begin_, bytes});
  }
  ~Mapping() {
    pinned_.unpin();
    ::munmap(all_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* begin() const { return begin_; }

 private:
  void touch(std::size_t bytes) {
#if defined(MADV_POPULATE_WRITE)
    if (::madvise(begin_, round_up(bytes, kTensorAlignment), MADV_POPULATE_WRITE) == 0) return;
#endif
    constexpr std::size_t kPage = 4096;
    for (std::size_t at = 0; at < bytes; at += kPage) begin_[at] = std::byte{0};
  }

  std::size_t bytes_;
  std::byte* all_ = nullptr;
  std::byte* begin_ = nullptr;
  PinnedMemory pinned_;
};

std::size_t bytes_of(const TensorSpec& spec) {
  std::size_t bytes = c10::elementSize(spec.type);
  for (const std::int64_t size : spec.sizes) bytes *= static_cast<std::size_t>(size);
  return bytes;
}

bool fit(const std::vector<at::Tensor>& tensors, const std::vector<TensorSpec>& specs) {
  return std::equal(tensors.begin(), tensors.end(), specs.begin(), specs.end(),
                    [](const at::Tensor& tensor, const TensorSpec& spec) {
                      return tensor.defined() && tensor.scalar_type() == spec.type &&
                             tensor.sizes() == at::IntArrayRef(spec.sizes);
                    });
}

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  if (bytes > kSmall) {
    const std::size_t head = (16 - reinterpret_cast<std::uintptr_t>(to) % 16) % 16;
    std::memcpy(to, from, head);
    constexpr std::size_t kLine = 64;
    constexpr std::size_t kAhead = 1024;  // Bytes; beyond the end is no harm.
    std::size_t at = head;
    for (; at + kLine <= bytes; at += kLine) {
      const auto* in = reinterpret_cast<const __m128i*>(from + at);
      auto* out = reinterpret_cast<__m128i*>(to + at);
      _mm_prefetch(reinterpret_cast<const char*>(from + at) + kAhead, _MM_HINT_NTA);
      const __m128i a = _mm_loadu_si128(in);
      const __m128i b = _mm_loadu_si128(in + 1);
      const __m128i c = _mm_loadu_si128(in + 2);
      const __m128i d = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    std::memcpy(to + at, from + at, bytes - at);
    _mm_sfence();
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

bool fit_tensors(std::vector<at::Tensor>& tensors, const std::vector<TensorSpec>& specs) {
  if (fit(tensors, specs)) return true;
  tensors.clear();
  std::size_t total = 0;
  for (const TensorSpec& spec : specs) total += round_up(bytes_of(spec), kTensorAlignment);
  const auto mapping = std::make_shared<Mapping>(std::max<std::size_t>(total, 1));
  std::byte* at = mapping->begin();
  for (const TensorSpec& spec : specs) {
    tensors.push_back(at::from_blob(
        at, spec.sizes, [mapping](void*) {}, at::TensorOptions().dtype(spec.type)));
    at += round_up(bytes_of(spec), kTensorAlignment);
  }
  return false;
}

void stream_copies(std::span<const Copy> copies) {
  std::vector<Copy> pieces;
  for (const Copy& copy : copies) {
    for (std::size_t at = 0; at < copy.bytes; at += kPiece) {
      pieces.push_back({copy.to + at, copy.from + at, std::min(kPiece, copy.bytes - at)});
    }
  }
  constexpr std::int64_t kGrain = 4;  // Less is not worth a thread.
  at::parallel_for(0, static_cast<std::int64_t>(pieces.size()), kGrain,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (auto i = static_cast<std::size_t>(begin);
                          i < static_cast<std::size_t>(end); ++i) {
                       stream_copy(pieces[i].to, pieces[i].from, pieces[i].bytes);
                     }
                   });
}

}  // namespace ddp::elastic

#include "worker/checkpoint/reader.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "worker/checkpoint/checksum.h"

namespace ddp::checkpoint {
namespace {

// Large fetches save system calls. Small pieces stay in the processor's cache, where the second
// checksum finds what the first has brought in.
constexpr std::uint64_t kFetchBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kCacheBytes = std::uint64_t{256} << 10;
// With fewer bytes, a thread costs more than it saves.
constexpr std::uint64_t kBytesPerThread = std::uint64_t{16} << 20;

using Told = std::function<void(std::uint64_t)>;

// Fetches a part and feeds it to all checksums; reports how much after each fetch.
template <typename... Checksums>
Result<void> feed(const MappedFile& file, std::uint64_t begin, std::uint64_t end, const Told& told,
                  Checksums&... checksums) {
  for (std::uint64_t at = begin; at < end;) {
    const std::uint64_t fetched = std::min(end - at, kFetchBytes);
    if (auto read = file.fetch(at, fetched); !read) return read;
    for (const std::uint64_t stop = at + fetched; at < stop;) {
      const auto piece = file.bytes().subspan(at, std::min(stop - at, kCacheBytes));
      (checksums.update(piece), ...);
      at += piece.size();
    }
    if (told) told(fetched);
  }
  return {};
}

}  // namespace

Reader::Reader(FileSystem& files, std::string folder, const Manifest& manifest)
    : files_(files), folder_(std::move(folder)) {
  for (const TensorRecord& record : manifest.tensors) records_[record.file].push_back(&record);
}

Result<Reader::Shard*> Reader::open(const std::string& name) {
  if (const auto found = shards_.find(name); found != shards_.end()) return &found->second;
  const std::string path = join_path(folder_, name);
  auto file = files_.map_file(path);
  if (!file) return file.error();
  auto header = read_safetensors_header(**file, path);
  if (!header) return header.error();
  Shard shard;
  shard.file = std::move(*file);
  shard.header = std::move(*header);
  for (const TensorEntry& entry : shard.header.tensors) shard.entries[entry.name] = &entry;
  if (auto matches = match(name, shard); !matches) return matches.error();
  return &(shards_[name] = std::move(shard));
}

Result<void> Reader::match(const std::string& name, const Shard& shard) const {
  const auto found = records_.find(name);
  const std::size_t listed = found == records_.end() ? 0 : found->second.size();
  if (listed > 0) {
    for (const TensorRecord* record : found->second) {
      const auto entry = shard.entries.find(record->name);
      if (entry == shard.entries.end() || entry->second->type != record->type ||
          entry->second->shape != record->shape) {
        return make_error(Errc::kCorrupt,
                          "{} does not have tensor \"{}\" as the manifest describes it",
                          join_path(folder_, name), record->name);
      }
    }
  }
  if (listed != shard.entries.size()) {
    return make_error(Errc::kCorrupt, "{} has {} tensors, but the manifest lists {}",
                      join_path(folder_, name), shard.entries.size(), listed);
  }
  return {};
}

Result<void> Reader::check_tensor(const std::string& name, const TensorRecord& record,
                                  const std::string& actual) const {
  if (actual == record.checksum) return {};
  return make_error(Errc::kCorrupt, "the checksum of tensor \"{}\" in {} is {}, but {} is recorded",
                    record.name, join_path(folder_, name), actual, record.checksum);
}

Result<MappedTensor> Reader::tensor(const TensorRecord& record) {
  auto opened = open(record.file);
  if (!opened) return opened.error();
  Shard& shard = **opened;
  const TensorEntry& entry = *shard.entries.at(record.name);
  if (!shard.is_whole_checked && !shard.checked.contains(record.name)) {
    Checksum checksum;
    auto read = feed(*shard.file, entry.begin, entry.end, progress_, checksum);
    if (!read) return read.error();
    if (auto good = check_tensor(record.file, record, checksum.hex()); !good) return good.error();
    shard.checked.insert(entry.name);
  }
  return MappedTensor{shard.file->bytes().subspan(entry.begin, entry.end - entry.begin),
                      shard.file};
}

std::map<std::string_view, const TensorRecord*> Reader::records_of(const std::string& file) const {
  std::map<std::string_view, const TensorRecord*> records;
  if (const auto found = records_.find(file); found != records_.end()) {
    for (const TensorRecord* tensor : found->second) records[tensor->name] = tensor;
  }
  return records;
}

Result<void> Reader::verify(const FileRecord& record) {
  auto opened = open(record.name);
  if (!opened) return opened.error();
  Shard& shard = **opened;
  if (shard.is_whole_checked) return {};
  const auto records = records_of(record.name);
  Checksum of_file;
  // The header comes first, then the tensors in order of their bytes, without holes.
  const std::uint64_t data = shard.header.tensors.empty() ? shard.file->bytes().size()
                                                          : shard.header.tensors.front().begin;
  if (auto read = feed(*shard.file, 0, data, progress_, of_file); !read) return read;
  for (const TensorEntry& entry : shard.header.tensors) {
    Checksum of_tensor;
    auto read = feed(*shard.file, entry.begin, entry.end, progress_, of_file, of_tensor);
    if (!read) return read;
    auto good = check_tensor(record.name, *records.at(entry.name), of_tensor.hex());
    if (!good) return good;
  }
  if (const std::string actual = of_file.hex(); actual != record.checksum) {
    return make_error(Errc::kCorrupt, "the checksum of {} is {}, but {} is recorded",
                      join_path(folder_, record.name), actual, record.checksum);
  }
  shard.is_whole_checked = true;
  return {};
}

// Checks the tensors of a file with several threads; each takes the next unchecked tensor.
class Reader::Tensors {
 public:
  Tensors(const Reader& reader, const std::string& name, const Shard& shard)
      : reader_(reader), name_(name), shard_(shard), records_(reader.records_of(name)) {}

  Result<void> check(int threads) {
    const std::uint64_t useful = shard_.file->bytes().size() / kBytesPerThread;
    std::vector<std::thread> others;
    for (std::uint64_t i = 1; i < std::min(static_cast<std::uint64_t>(threads), useful); ++i) {
      others.emplace_back([this] { work([this](std::uint64_t bytes) { untold_ += bytes; }); });
    }
    // The header has been read and compared.
    untold_ += shard_.header.tensors.empty() ? shard_.file->bytes().size()
                                             : shard_.header.tensors.front().begin;
    work([this](std::uint64_t bytes) { tell(bytes + untold_.exchange(0)); });
    for (std::thread& other : others) other.join();
    tell(untold_.exchange(0));
    return failure_;
  }

 private:
  void work(const Told& told) {
    const std::vector<TensorEntry>& all = shard_.header.tensors;
    for (std::size_t i = next_++; i < all.size() && !failed_; i = next_++) {
      Checksum checksum;
      auto good = feed(*shard_.file, all[i].begin, all[i].end, told, checksum);
      if (good) good = reader_.check_tensor(name_, *records_.at(all[i].name), checksum.hex());
      if (good) continue;
      const std::lock_guard lock(mutex_);
      if (!failed_.exchange(true)) failure_ = std::move(good);
    }
  }
  void tell(std::uint64_t bytes) const {
    if (bytes > 0 && reader_.progress_) reader_.progress_(bytes);
  }

  const Reader& reader_;
  const std::string& name_;
  const Shard& shard_;
  const std::map<std::string_view, const TensorRecord*> records_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> untold_ = 0;  // Bytes that other threads have read, not reported yet.
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  Result<void> failure_;
};

Result<void> Reader::verify_tensors(const FileRecord& record, int threads) {
  auto opened = open(record.name);
  if (!opened) return opened.error();
  Shard& shard = **opened;
  if (shard.is_whole_checked) return {};
  if (!has_own_header(shard.file->bytes(), shard.header)) return verify(record);
  if (auto good = Tensors(*this, record.name, shard).check(threads); !good) return good;
  shard.is_whole_checked = true;
  return {};
}

}  // namespace ddp::checkpoint

#include "worker/checkpoint/reader.h"

#include <algorithm>

#include "worker/checkpoint/checksum.h"

namespace ddp::checkpoint {
namespace {

// Between these lies the cost of a system call on one side and the processor's cache on the other:
// what a checksum has brought into the cache the other one finds there.
constexpr std::uint64_t kFetchBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kCacheBytes = std::uint64_t{256} << 10;

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
        return make_error(Errc::kCorrupt, "{} does not have tensor \"{}\" as the manifest says",
                          join_path(folder_, name), record->name);
      }
    }
  }
  if (listed != shard.entries.size()) {
    return make_error(Errc::kCorrupt, "{} has {} tensors, the manifest {}",
                      join_path(folder_, name), shard.entries.size(), listed);
  }
  return {};
}

template <typename... Checksums>
Result<void> Reader::feed(const MappedFile& file, std::uint64_t begin, std::uint64_t end,
                          Checksums&... checksums) const {
  for (std::uint64_t at = begin; at < end;) {
    const std::uint64_t fetched = std::min(end - at, kFetchBytes);
    if (auto read = file.fetch(at, fetched); !read) return read;
    for (const std::uint64_t stop = at + fetched; at < stop;) {
      const auto piece = file.bytes().subspan(at, std::min(stop - at, kCacheBytes));
      (checksums.update(piece), ...);
      at += piece.size();
    }
    if (progress_) progress_(fetched);
  }
  return {};
}

Result<void> Reader::check_tensor(const std::string& name, const TensorRecord& record,
                                  const std::string& actual) const {
  if (actual == record.checksum) return {};
  return make_error(Errc::kCorrupt, "the checksum of tensor \"{}\" in {} is {}, {} is recorded",
                    record.name, join_path(folder_, name), actual, record.checksum);
}

Result<MappedTensor> Reader::tensor(const TensorRecord& record) {
  auto opened = open(record.file);
  if (!opened) return opened.error();
  Shard& shard = **opened;
  const TensorEntry& entry = *shard.entries.at(record.name);
  if (!shard.is_whole_checked && !shard.checked.contains(record.name)) {
    Checksum checksum;
    if (auto read = feed(*shard.file, entry.begin, entry.end, checksum); !read) return read.error();
    if (auto good = check_tensor(record.file, record, checksum.hex()); !good) return good.error();
    shard.checked.insert(entry.name);
  }
  return MappedTensor{shard.file->bytes().subspan(entry.begin, entry.end - entry.begin),
                      shard.file};
}

Result<void> Reader::verify(const FileRecord& record) {
  auto opened = open(record.name);
  if (!opened) return opened.error();
  Shard& shard = **opened;
  if (shard.is_whole_checked) return {};
  std::map<std::string_view, const TensorRecord*> records;
  if (const auto found = records_.find(record.name); found != records_.end()) {
    for (const TensorRecord* tensor : found->second) records[tensor->name] = tensor;
  }
  Checksum of_file;
  // Tensors lie in the order of their bytes and without holes; the header is before them.
  const std::uint64_t data = shard.header.tensors.empty() ? shard.file->bytes().size()
                                                          : shard.header.tensors.front().begin;
  if (auto read = feed(*shard.file, 0, data, of_file); !read) return read;
  for (const TensorEntry& entry : shard.header.tensors) {
    Checksum of_tensor;
    if (auto read = feed(*shard.file, entry.begin, entry.end, of_file, of_tensor); !read)
      return read;
    auto good = check_tensor(record.name, *records.at(entry.name), of_tensor.hex());
    if (!good) return good;
  }
  if (const std::string actual = of_file.hex(); actual != record.checksum) {
    return make_error(Errc::kCorrupt, "the checksum of {} is {}, {} is recorded",
                      join_path(folder_, record.name), actual, record.checksum);
  }
  shard.is_whole_checked = true;
  return {};
}

}  // namespace ddp::checkpoint

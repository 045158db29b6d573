#include "worker/checkpoint/tool/stored_zip.h"

#include <algorithm>

#include <zlib.h>

namespace ddp::checkpoint {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kMax32 = 0xffffffff;
constexpr std::uint64_t kMax16 = 0xffff;
constexpr std::uint16_t kZip64Id = 1;
constexpr std::uint16_t kPaddingId = 0x4246;  // As torch.save's.
constexpr std::uint16_t kUtf8Names = 1 << 11;
constexpr std::uint16_t kDay = 1 << 5 | 1;  // 1980-01-01, the earliest possible date.

class Bytes {
 public:
  Bytes& put(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) text_ += static_cast<char>(value >> (8 * i));
    return *this;
  }
  Bytes& u16(std::uint64_t value) { return put(value, 2); }
  Bytes& u32(std::uint64_t value) { return put(value, 4); }
  Bytes& u64(std::uint64_t value) { return put(value, 8); }
  Bytes& add(std::string_view text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }
  std::size_t size() const { return text_.size(); }

 private:
  std::string text_;
};

std::uint32_t crc_of(std::span<const std::byte> data) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

}  // namespace

Result<void> StoredZip::add(const std::string& name, std::string_view text) {
  return add(name, std::as_bytes(std::span(text.data(), text.size())));
}

Result<void> StoredZip::add(const std::string& name, std::span<const std::byte> data) {
  const Record record{name, data.size(), at_, crc_of(data)};
  const bool is_large = record.size >= kMax32;
  Bytes extra;
  if (is_large) extra.u16(kZip64Id).u16(16).u64(record.size).u64(record.size);
  constexpr std::uint64_t kFixed = 30;
  constexpr std::uint64_t kPaddingHead = 4;
  const std::uint64_t begin = at_ + kFixed + name.size() + extra.size() + kPaddingHead;
  const std::uint64_t padding = (kAlignment - begin % kAlignment) % kAlignment;
  extra.u16(kPaddingId).u16(padding).add(std::string(padding, 'Z'));
  Bytes header;
  header.u32(0x04034b50).u16(is_large ? 45 : 20).u16(kUtf8Names).u16(0).u16(0).u16(kDay);
  header.u32(record.crc);
  const std::uint64_t size = is_large ? kMax32 : record.size;
  header.u32(size).u32(size).u16(name.size()).u16(extra.size()).add(name).add(extra.text());
  if (auto written = append(header.text()); !written) return written;
  if (auto written = file_->append(data); !written) return written;
  at_ += data.size();
  records_.push_back(record);
  return {};
}

Result<void> StoredZip::finish() {
  const std::uint64_t begin = at_;
  for (const Record& record : records_) {
    Bytes values;
    if (record.size >= kMax32) values.u64(record.size).u64(record.size);
    if (record.offset >= kMax32) values.u64(record.offset);
    Bytes extra;
    if (values.size() > 0) extra.u16(kZip64Id).u16(values.size()).add(values.text());
    const int version = values.size() > 0 ? 45 : 20;
    Bytes entry;
    entry.u32(0x02014b50).u16(45).u16(static_cast<std::uint64_t>(version)).u16(kUtf8Names);
    entry.u16(0).u16(0).u16(kDay).u32(record.crc);
    const std::uint64_t size = std::min(record.size, kMax32);
    entry.u32(size).u32(size).u16(record.name.size()).u16(extra.size()).u16(0).u16(0).u16(0).u32(0);
    entry.u32(std::min(record.offset, kMax32)).add(record.name).add(extra.text());
    if (auto written = append(entry.text()); !written) return written;
  }
  const std::uint64_t end = at_;
  const std::uint64_t count = records_.size();
  Bytes tail;
  if (count >= kMax16 || end >= kMax32) {
    tail.u32(0x06064b50).u64(44).u16(45).u16(45).u32(0).u32(0).u64(count).u64(count);
    tail.u64(end - begin).u64(begin);
    tail.u32(0x07064b50).u32(0).u64(end).u32(1);
  }
  tail.u32(0x06054b50).u16(0).u16(0).u16(std::min(count, kMax16)).u16(std::min(count, kMax16));
  tail.u32(std::min(end - begin, kMax32)).u32(std::min(begin, kMax32)).u16(0);
  return append(tail.text());
}

Result<void> StoredZip::append(std::string_view bytes) {
  at_ += bytes.size();
  return file_->append(bytes);
}

}  // namespace ddp::checkpoint

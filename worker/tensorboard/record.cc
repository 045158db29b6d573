#include "worker/tensorboard/record.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "worker/tensorboard/crc32c.h"
#include "worker/tensorboard/event.h"

namespace ddp::tensorboard {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kChecksumBytes = 4;
// Events of scalars take some hundred bytes.
constexpr std::uint64_t kMaxDataBytes = 64 << 20;

template <typename Number>
void append(std::string& bytes, Number number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof number);
}

template <typename Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

// Up to `count` bytes: fewer at the end of the file.
std::string read_up_to(std::FILE* file, std::size_t count) {
  std::string bytes(count, '\0');
  bytes.resize(std::fread(bytes.data(), 1, count, file));
  return bytes;
}

bool is_zeros(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

bool rest_is_zeros(std::FILE* file) {
  for (;;) {
    const std::string bytes = read_up_to(file, 1 << 16);
    if (bytes.empty()) return true;
    if (!is_zeros(bytes)) return false;
  }
}

struct Record {
  bool at_end = false;  // There is no whole record any more.
  std::string data;
  std::int64_t bytes = 0;  // Of the record.
};

Error not_a_record(std::int64_t place, std::string_view why) {
  return make_error(Errc::kCorrupt, "byte {}: {}", place, why);
}

Result<Record> read_record(std::FILE* file, std::int64_t place) {
  const std::string header = read_up_to(file, kLengthBytes + kChecksumBytes);
  if (header.size() < kLengthBytes + kChecksumBytes) return Record{.at_end = true, .data = {}};
  if (is_zeros(header)) {
    if (rest_is_zeros(file)) return Record{.at_end = true, .data = {}};
    return not_a_record(place, "zeros, and more after them");
  }
  const std::string_view length_bytes = std::string_view(header).substr(0, kLengthBytes);
  if (masked_crc32c(length_bytes) != number_at<std::uint32_t>(header, kLengthBytes))
    return not_a_record(place, "the checksum of a record's length does not fit");
  const auto length = number_at<std::uint64_t>(header, 0);
  if (length > kMaxDataBytes) return not_a_record(place, "a record of more than 64 MiB");

  Record record;
  record.data = read_up_to(file, static_cast<std::size_t>(length));
  const std::string checksum = read_up_to(file, kChecksumBytes);
  if (record.data.size() < length || checksum.size() < kChecksumBytes) {
    record.at_end = true;
    return record;
  }
  if (masked_crc32c(record.data) != number_at<std::uint32_t>(checksum, 0)) {
    if (is_zeros(checksum) && rest_is_zeros(file)) return Record{.at_end = true, .data = {}};
    return not_a_record(place, "the checksum of a record does not fit");
  }
  record.bytes = static_cast<std::int64_t>(header.size() + length + checksum.size());
  return record;
}

}  // namespace

std::string record_of(std::string_view data) {
  std::string bytes;
  bytes.reserve(kLengthBytes + 2 * kChecksumBytes + data.size());
  append(bytes, static_cast<std::uint64_t>(data.size()));
  append(bytes, masked_crc32c(bytes));
  bytes += data;
  append(bytes, masked_crc32c(data));
  return bytes;
}

Result<StepsUpTo> find_steps_up_to(std::FILE* file, std::int64_t last_step) {
  StepsUpTo found;
  for (std::int64_t place = 0;;) {
    const Result<Record> record = read_record(file, place);
    if (std::ferror(file) != 0)
      return make_error(Errc::kIo, "cannot be read: {}", std::generic_category().message(errno));
    if (!record) return record.error();
    if (record->at_end) return found;
    Result<Event> event = decode_event(record->data);
    if (!event) return not_a_record(place, "a record that is no event: " + event.error().message);
    const std::int64_t end = place + record->bytes;
    if (event->step <= last_step) {
      if (found.ranges.empty() || found.ranges.back().end < place)
        found.ranges.push_back({place, end});
      else
        found.ranges.back().end = end;
      for (const std::string& tag : event->tags) {
        std::int64_t& newest = found.newest.try_emplace(tag, event->step).first->second;
        newest = std::max(newest, event->step);
      }
    }
    place = end;
  }
}

}  // namespace ddp::tensorboard

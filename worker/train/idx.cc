#include "worker/train/idx.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include <zlib.h>

namespace ddp::train {
namespace {

constexpr std::uint32_t kMagicImages = 0x00000803;  // Unsigned bytes, three dimensions.
constexpr std::uint32_t kMagicLabels = 0x00000801;  // Unsigned bytes, one dimension.
constexpr std::uint64_t kImagesHeader = 16;
constexpr std::uint64_t kLabelsHeader = 8;
constexpr std::uint32_t kMaxSide = 4096;  // Of an image; a header with more is taken for damage.
constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;

struct GzClose {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, GzClose>;

// One file being read from front to end; zlib passes a plain file through.
class IdxReader {
 public:
  static Result<IdxReader> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      const int error = errno;
      if (error == ENOENT) return make_error(Errc::kNotFound, "{}: no such file", path);
      return make_error(Errc::kIo, "{}: cannot open: {}", path,
                        std::generic_category().message(error));
    }
    gzFile file = gzdopen(fd, "rb");
    if (file == nullptr) {
      ::close(fd);
      return make_error(Errc::kIo, "{}: zlib cannot read it: out of memory", path);
    }
    gzbuffer(file, 1U << 17);
    return IdxReader(path, GzHandle(file));
  }

  // Appends the next `size` bytes to `out`. `whole` is the size that the file needs for them, for
  // the message. Memory grows with what the file really holds, not with what its header claims.
  Result<void> read(std::vector<std::uint8_t>& out, std::uint64_t size, std::uint64_t whole) {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 24;
    std::uint64_t done = 0;
    while (done < size) {
      const std::uint64_t piece = std::min(kPiece, size - done);
      const std::size_t start = out.size();
      out.resize(start + piece);
      const int got = gzread(file_.get(), out.data() + start, static_cast<unsigned>(piece));
      if (got < 0) return damaged();
      if (auto intact = check_stream(); !intact) return intact;
      done += static_cast<std::uint64_t>(got);
      if (static_cast<std::uint64_t>(got) < piece) {
        return make_error(Errc::kCorrupt, "{}: truncated: {} bytes, expected {}", path_,
                          position_ + done, whole);
      }
    }
    position_ += size;
    return {};
  }

  Result<std::uint32_t> read_number(std::uint64_t header_bytes) {
    std::vector<std::uint8_t> bytes;
    if (auto done = read(bytes, 4, header_bytes); !done) return done.error();
    return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
           (std::uint32_t{bytes[2]} << 8) | std::uint32_t{bytes[3]};
  }

  // Fails if anything follows. Reading to the end also makes zlib check the checksum of a .gz file.
  Result<void> expect_end() {
    std::uint8_t extra = 0;
    const int got = gzread(file_.get(), &extra, 1);
    if (got < 0) return damaged();
    if (auto intact = check_stream(); !intact) return intact;
    if (got > 0) {
      return make_error(Errc::kCorrupt,
                        "{}: too long: more than the {} bytes that its header gives", path_,
                        position_);
    }
    return {};
  }

  const std::string& path() const { return path_; }

 private:
  IdxReader(std::string path, GzHandle file) : path_(std::move(path)), file_(std::move(file)) {}

  // gzread does not fail where a gzip stream stops early; only gzerror has the reason. Since zlib
  // 1.3.2 the next gzread clears it, so call this after each gzread, even one that gave all bytes.
  Result<void> check_stream() const {
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (code == Z_OK || code == Z_STREAM_END) return {};
    return damaged();
  }

  Error damaged() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) {
      return make_error(Errc::kIo, "{}: cannot read: {}", path_,
                        std::generic_category().message(errno));
    }
    if (code == Z_BUF_ERROR) {
      return make_error(Errc::kCorrupt, "{}: truncated: the gzip stream ends early", path_);
    }
    return make_error(Errc::kCorrupt, "{}: damaged gzip stream: {}", path_, text);
  }

  std::string path_;
  GzHandle file_;
  std::uint64_t position_ = 0;  // Bytes read, after decompression.
};

Result<void> expect_magic(IdxReader& reader, std::uint32_t expected, std::uint64_t header_bytes,
                          const char* kind) {
  auto magic = reader.read_number(header_bytes);
  if (!magic) return magic.error();
  if (*magic != expected) {
    return make_error(Errc::kCorrupt, "{}: magic number {}, expected {} (IDX {})", reader.path(),
                      *magic, expected, kind);
  }
  return {};
}

Result<void> read_images(const std::string& path, ImageSet& set) {
  auto reader = IdxReader::open(path);
  if (!reader) return reader.error();
  if (auto ok = expect_magic(*reader, kMagicImages, kImagesHeader, "images"); !ok) return ok;
  std::array<std::uint32_t, 3> dimensions{};
  for (std::uint32_t& dimension : dimensions) {
    auto number = reader->read_number(kImagesHeader);
    if (!number) return number.error();
    dimension = *number;
  }
  const auto [count, rows, columns] = dimensions;
  if (count == 0)
    return make_error(Errc::kCorrupt, "{}: holds 0 images, expected at least 1", path);
  if (rows == 0 || columns == 0 || rows > kMaxSide || columns > kMaxSide) {
    return make_error(Errc::kCorrupt, "{}: images of {} x {} pixels, expected 1 to {} a side", path,
                      rows, columns, kMaxSide);
  }
  const std::uint64_t bytes = std::uint64_t{count} * rows * columns;
  if (bytes > kMaxBytes) {
    return make_error(Errc::kCorrupt, "{}: {} images of {} x {}: {} bytes, expected at most {}",
                      path, count, rows, columns, bytes, kMaxBytes);
  }
  set.count = count;
  set.rows = rows;
  set.columns = columns;
  if (auto ok = reader->read(set.pixels, bytes, kImagesHeader + bytes); !ok) return ok;
  return reader->expect_end();
}

Result<void> read_labels(const std::string& path, const std::string& images_path, ImageSet& set) {
  auto reader = IdxReader::open(path);
  if (!reader) return reader.error();
  if (auto ok = expect_magic(*reader, kMagicLabels, kLabelsHeader, "labels"); !ok) return ok;
  auto count = reader->read_number(kLabelsHeader);
  if (!count) return count.error();
  if (*count != set.count) {
    return make_error(Errc::kCorrupt, "{}: {} labels, expected {}, one for each image of {}", path,
                      *count, set.count, images_path);
  }
  if (auto ok = reader->read(set.labels, *count, kLabelsHeader + *count); !ok) return ok;
  if (auto ok = reader->expect_end(); !ok) return ok;
  for (std::size_t i = 0; i < set.labels.size(); ++i) {
    if (set.labels[i] > 9) {
      return make_error(Errc::kCorrupt, "{}: label {} of image {}, expected 0 to 9", path,
                        set.labels[i], i);
    }
  }
  return {};
}

Result<std::string> find_file(const std::string& folder, const std::string& name) {
  const std::filesystem::path base = std::filesystem::path(folder) / name;
  for (const std::string& candidate : {base.string(), base.string() + ".gz"}) {
    std::error_code code;
    if (std::filesystem::exists(candidate, code)) return candidate;
  }
  return make_error(Errc::kNotFound, "{}: no such file, neither plain nor with .gz", base.string());
}

}  // namespace

Result<ImageSet> read_idx_pair(const std::string& images_path, const std::string& labels_path) {
  ImageSet set;
  if (auto ok = read_images(images_path, set); !ok) return ok.error();
  if (auto ok = read_labels(labels_path, images_path, set); !ok) return ok.error();
  return set;
}

Result<ImageSet> read_mnist(const std::string& folder, MnistPart part) {
  const std::string stem = part == MnistPart::kTrain ? "train" : "t10k";
  auto images = find_file(folder, stem + "-images-idx3-ubyte");
  if (!images) return images.error();
  auto labels = find_file(folder, stem + "-labels-idx1-ubyte");
  if (!labels) return labels.error();
  auto set = read_idx_pair(*images, *labels);
  if (set && (set->rows != 28 || set->columns != 28)) {
    return make_error(Errc::kCorrupt, "{}: images of {} x {} pixels, expected 28 x 28", *images,
                      set->rows, set->columns);
  }
  return set;
}

}  // namespace ddp::train

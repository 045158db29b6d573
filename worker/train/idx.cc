#include "worker/train/idx.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include <zlib.h>

namespace ddp::train {
namespace {

using Bytes = std::vector<std::uint8_t>;

// The last byte is the number of dimensions, the one before says that elements are unsigned bytes.
constexpr std::uint32_t kMagicImages = 0x00000803;
constexpr std::uint32_t kMagicLabels = 0x00000801;
constexpr std::uint32_t kMaxSide = 4096;  // Of an image; a header with more is taken for damage.
constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kMaxHeader = 16;

struct GzClose {
  void operator()(gzFile file) const { gzclose(file); }
};

// What the file holds, decompressed; zlib passes a plain file through. Memory grows with what is
// really there, not with what a header claims.
Result<Bytes> read_whole(const std::string& path) {
  constexpr unsigned kPiece = 1U << 24;
  errno = 0;
  const std::unique_ptr<gzFile_s, GzClose> file(gzopen(path.c_str(), "rbe"));
  if (!file) {
    if (errno == ENOENT) return make_error(Errc::kNotFound, "{}: no such file", path);
    const int error = errno != 0 ? errno : ENOMEM;  // zlib sets none if it has no memory.
    return make_error(Errc::kIo, "{}: cannot open: {}", path,
                      std::generic_category().message(error));
  }
  Bytes bytes;
  for (std::size_t size = 0; size <= kMaxBytes + kMaxHeader;) {
    bytes.resize(size + kPiece);
    const int got = gzread(file.get(), bytes.data() + size, kPiece);
    // gzread does not fail where a gzip stream stops early; only gzerror has the reason,
    // which the next gzread of zlib 1.3.2 clears.
    int code = Z_OK;
    const char* text = gzerror(file.get(), &code);
    if (code == Z_ERRNO) {
      return make_error(Errc::kIo, "{}: cannot read: {}", path,
                        std::generic_category().message(errno));
    }
    if (code == Z_BUF_ERROR) {
      return make_error(Errc::kCorrupt, "{}: truncated: the gzip stream ends early", path);
    }
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      return make_error(Errc::kCorrupt, "{}: damaged gzip stream: {}", path, text);
    }
    size += static_cast<std::size_t>(got);
    bytes.resize(size);
    if (static_cast<unsigned>(got) < kPiece) return bytes;
  }
  return make_error(Errc::kCorrupt, "{}: too long: expected at most {} bytes", path, kMaxBytes);
}

struct IdxFile {
  std::string path;
  Bytes bytes;  // All of the file.
  std::vector<std::uint32_t> dimensions;
};

Error truncated(const IdxFile& file, std::uint64_t whole) {
  return make_error(Errc::kCorrupt, "{}: truncated: {} bytes, expected {}", file.path,
                    file.bytes.size(), whole);
}

std::uint32_t number_at(const Bytes& bytes, std::size_t at) {
  return (std::uint32_t{bytes[at]} << 24) | (std::uint32_t{bytes[at + 1]} << 16) |
         (std::uint32_t{bytes[at + 2]} << 8) | std::uint32_t{bytes[at + 3]};
}

Result<IdxFile> read_file(const std::string& path, std::uint32_t magic, const char* kind) {
  auto bytes = read_whole(path);
  if (!bytes) return bytes.error();
  IdxFile file{path, std::move(*bytes), std::vector<std::uint32_t>(magic & 0xff)};
  const std::size_t header = 4 * (1 + file.dimensions.size());
  if (file.bytes.size() >= 4 && number_at(file.bytes, 0) != magic) {
    return make_error(Errc::kCorrupt, "{}: magic number {}, expected {} (IDX {})", path,
                      number_at(file.bytes, 0), magic, kind);
  }
  if (file.bytes.size() < header) return truncated(file, header);
  for (std::size_t i = 0; i < file.dimensions.size(); ++i) {
    file.dimensions[i] = number_at(file.bytes, 4 * (1 + i));
  }
  return file;
}

// What follows the header, which gives it `count` bytes. Takes the file's memory, because there may
// not be enough for a copy.
Result<Bytes> elements_of(IdxFile file, std::uint64_t count) {
  const std::size_t header = 4 * (1 + file.dimensions.size());
  if (file.bytes.size() < header + count) return truncated(file, header + count);
  if (file.bytes.size() > header + count) {
    return make_error(Errc::kCorrupt, "{}: too long: more than the {} bytes that its header gives",
                      file.path, header + count);
  }
  file.bytes.erase(file.bytes.begin(), file.bytes.begin() + static_cast<std::ptrdiff_t>(header));
  return std::move(file.bytes);
}

Result<void> read_images(const std::string& path, ImageSet& set) {
  auto file = read_file(path, kMagicImages, "images");
  if (!file) return file.error();
  set.count = file->dimensions[0];
  set.rows = file->dimensions[1];
  set.columns = file->dimensions[2];
  if (set.count == 0)
    return make_error(Errc::kCorrupt, "{}: holds 0 images, expected at least 1", path);
  if (set.rows == 0 || set.columns == 0 || set.rows > kMaxSide || set.columns > kMaxSide) {
    return make_error(Errc::kCorrupt, "{}: images of {} x {} pixels, expected 1 to {} a side", path,
                      set.rows, set.columns, kMaxSide);
  }
  const std::uint64_t bytes = std::uint64_t{set.count} * set.rows * set.columns;
  if (bytes > kMaxBytes) {
    return make_error(Errc::kCorrupt, "{}: {} images of {} x {}: {} bytes, expected at most {}",
                      path, set.count, set.rows, set.columns, bytes, kMaxBytes);
  }
  auto pixels = elements_of(std::move(*file), bytes);
  if (!pixels) return pixels.error();
  set.pixels = std::move(*pixels);
  return {};
}

Result<void> read_labels(const std::string& path, const std::string& images_path, ImageSet& set) {
  auto file = read_file(path, kMagicLabels, "labels");
  if (!file) return file.error();
  const std::uint32_t count = file->dimensions[0];
  if (count != set.count) {
    return make_error(Errc::kCorrupt, "{}: {} labels, expected {}, one for each image of {}", path,
                      count, set.count, images_path);
  }
  auto labels = elements_of(std::move(*file), count);
  if (!labels) return labels.error();
  set.labels = std::move(*labels);
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

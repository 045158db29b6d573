#include "worker/train/text.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "worker/data/random.h"

namespace ddp::train {
namespace {

namespace fs = std::filesystem;

Result<void> append_file(const fs::path& path, std::string& text) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(Errc::kIo, "cannot open {}", path.string());
  std::array<char, 1 << 16> piece{};
  while (in.read(piece.data(), piece.size()) || in.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) return make_error(Errc::kIo, "cannot read {}", path.string());
  return {};
}

Result<std::vector<fs::path>> files_below(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (at->is_regular_file()) files.push_back(at->path());
  }
  if (error) return make_error(Errc::kIo, "cannot read {}: {}", folder, error.message());
  std::sort(files.begin(), files.end());
  return files;
}

struct Person {
  std::string_view name;
  std::string_view pronoun;
};
constexpr std::array<Person, 8> kPeople = {{{"Ada", "she"},
                                            {"Alan", "he"},
                                            {"Grace", "she"},
                                            {"Edsger", "he"},
                                            {"Barbara", "she"},
                                            {"Donald", "he"},
                                            {"Frances", "she"},
                                            {"Leslie", "he"}}};
constexpr std::array<std::string_view, 10> kThings = {
    "letter", "lamp", "river", "garden", "window", "machine", "song", "bridge", "stone", "map"};
constexpr std::array<std::string_view, 8> kKinds = {"old",  "small", "bright", "quiet",
                                                    "warm", "heavy", "green",  "lost"};
constexpr std::array<std::string_view, 8> kVerbs = {"find",  "want",   "draw",  "leave",
                                                    "carry", "follow", "paint", "remember"};
constexpr std::array<std::string_view, 6> kPlaces = {"by the sea",    "in the house",
                                                     "on the hill",   "under the bridge",
                                                     "near the road", "behind the wall"};

class Writer {
 public:
  Writer(std::uint64_t seed, std::uint64_t stream) : random_({seed, 0x74657874, stream}) {}

  std::string sentence() {
    const Person& person = one_of(kPeople);
    switch (random_.below(4)) {
      case 0:
        return fmt::format("{} {} the {} {}.", person.name, third(one_of(kVerbs)), one_of(kKinds),
                           one_of(kThings));
      case 1:
        return fmt::format("{} and {} {} a {} {}.", person.name, one_of(kPeople).name,
                           one_of(kVerbs), one_of(kThings), one_of(kPlaces));
      case 2:
        return fmt::format("When {} {} the {}, {} {} it {}.", person.name, third(one_of(kVerbs)),
                           one_of(kThings), person.pronoun, third(one_of(kVerbs)), one_of(kPlaces));
      default:
        return fmt::format("The {} {} {} is {}.", one_of(kKinds), one_of(kThings), one_of(kPlaces),
                           one_of(kKinds));
    }
  }
  bool ends_paragraph() { return random_.below(6) == 0; }

 private:
  template <typename T, std::size_t N>
  const T& one_of(const std::array<T, N>& all) {
    return all[random_.below(N)];
  }
  static std::string third(std::string_view verb) {
    return verb.ends_with("ry") ? fmt::format("{}ies", verb.substr(0, verb.size() - 1))
                                : fmt::format("{}s", verb);
  }

  Random random_;
};

}  // namespace

Result<std::string> read_text_data(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return make_error(Errc::kNotFound, "{} does not exist", path);
  std::string text;
  if (fs::is_directory(status)) {
    auto files = files_below(path);
    if (!files) return files.error();
    for (const fs::path& file : *files) {
      if (!text.empty() && !text.ends_with('\n')) text += '\n';
      if (auto read = append_file(file, text); !read) return read.error();
    }
  } else if (auto read = append_file(path, text); !read) {
    return read.error();
  }
  if (text.size() < 2) {
    return make_error(Errc::kCorrupt, "{} has {} bytes of text, at least 2 are needed", path,
                      text.size());
  }
  return text;
}

std::string draw_text(std::size_t bytes, std::uint64_t seed, std::uint64_t stream) {
  Writer writer(seed, stream);
  std::string text;
  text.reserve(bytes + 128);
  while (text.size() < bytes) {
    text += writer.sentence();
    text += writer.ends_paragraph() ? '\n' : ' ';
  }
  text.resize(bytes);
  return text;
}

}  // namespace ddp::train

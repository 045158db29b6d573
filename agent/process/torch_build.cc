#include "agent/process/torch_build.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <elf.h>

#include "common/base/unique_fd.h"

namespace ddp::agent {
namespace {

// From this release on, TCPStore uses libuv unless it is told not to.
constexpr std::pair<int, int> kFirstWithLibuv{2, 4};
// A library of 2 GB has tables of a few MB.
constexpr std::size_t kMaxTable = std::size_t{256} << 20;

// The version in `__version__ = '2.6.0+debian'` of version.py.
std::optional<std::pair<int, int>> version_of(const std::string& package) {
  std::ifstream file(package + "/version.py");
  constexpr std::string_view kName = "__version__ = '";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    std::pair<int, int> version;
    if (std::sscanf(line.c_str() + kName.size(), "%d.%d", &version.first, &version.second) != 2)
      return {};
    return version;
  }
  return {};
}

// A 64-bit ELF file, as far as it can be read.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    const auto header = table<Elf64_Ehdr>(0, sizeof(Elf64_Ehdr));
    if (header.empty() || std::memcmp(header.front().e_ident, ELFMAG, SELFMAG) != 0 ||
        header.front().e_ident[EI_CLASS] != ELFCLASS64 ||
        header.front().e_shentsize != sizeof(Elf64_Shdr)) {
      return;
    }
    sections_ = table<Elf64_Shdr>(header.front().e_shoff,
                                  std::size_t{header.front().e_shnum} * sizeof(Elf64_Shdr));
  }

  // The names of functions and variables that it imports. Empty: unknown.
  std::vector<std::string> imports() const {
    std::vector<std::string> names;
    const Elf64_Shdr* symbols = section(SHT_DYNSYM);
    if (symbols == nullptr) return names;
    const std::vector<char> text = strings_of(*symbols);
    for (const auto& symbol : table<Elf64_Sym>(symbols->sh_offset, symbols->sh_size)) {
      if (symbol.st_shndx == SHN_UNDEF && symbol.st_name != 0 && symbol.st_name < text.size())
        names.emplace_back(text.data() + symbol.st_name);
    }
    return names;
  }

  // The libraries that it is linked with.
  std::vector<std::string> libraries() const {
    std::vector<std::string> names;
    const Elf64_Shdr* dynamic = section(SHT_DYNAMIC);
    if (dynamic == nullptr) return names;
    const std::vector<char> text = strings_of(*dynamic);
    for (const auto& entry : table<Elf64_Dyn>(dynamic->sh_offset, dynamic->sh_size)) {
      if (entry.d_tag == DT_NEEDED && entry.d_un.d_val < text.size())
        names.emplace_back(text.data() + entry.d_un.d_val);
    }
    return names;
  }

 private:
  const Elf64_Shdr* section(std::uint32_t type) const {
    const auto found = std::find_if(sections_.begin(), sections_.end(),
                                    [type](const auto& one) { return one.sh_type == type; });
    return found == sections_.end() ? nullptr : &*found;
  }

  // Ends with NUL, or is empty.
  std::vector<char> strings_of(const Elf64_Shdr& of) const {
    if (of.sh_link >= sections_.size()) return {};
    const Elf64_Shdr& strings = sections_[of.sh_link];
    auto text = table<char>(strings.sh_offset, strings.sh_size);
    if (!text.empty()) text.back() = '\0';
    return text;
  }

  template <typename T>
  std::vector<T> table(std::uint64_t offset, std::size_t bytes) const {
    if (!fd_ || bytes > kMaxTable) return {};
    std::vector<T> entries(bytes / sizeof(T));
    const auto size = static_cast<ssize_t>(entries.size() * sizeof(T));
    if (::pread(fd_.get(), entries.data(), static_cast<std::size_t>(size),
                static_cast<off_t>(offset)) != size) {
      return {};
    }
    return entries;
  }

  UniqueFd fd_;
  std::vector<Elf64_Shdr> sections_;
};

bool may_have_libuv(const SharedLibrary& library) {
  const std::vector<std::string> imports = library.imports();
  const std::vector<std::string> libraries = library.libraries();
  if (imports.empty() || libraries.empty()) return true;
  return std::any_of(imports.begin(), imports.end(),
                     [](const std::string& name) {
                       return name.starts_with("epoll_") || name.starts_with("uv_");
                     }) ||
         std::any_of(libraries.begin(), libraries.end(),
                     [](const std::string& name) { return name.starts_with("libuv"); });
}

}  // namespace

// PyTorch's store is in libtorch_cpu. Either libtorch_cpu is linked with libuv, or libuv is part of
// it and calls epoll of the C library, as every libuv since 2018 does on Linux. PyTorch itself does
// not use epoll, unless gloo or TensorPipe are part of it, too. So if there is neither a linked
// libuv nor an import of epoll, there is no libuv. Debian's libtorch_cpu 1.13.1, 2.6.0 and 2.14.1,
// which have no libuv, import poll but not epoll, and export nothing of c10d::detail that would
// tell builds apart. Wheels from PyPI contain gloo and TensorPipe, so they never count as builds
// without libuv.
bool lacks_libuv(const std::string& package) {
  const auto version = version_of(package);
  if (!version || *version < kFirstWithLibuv) return false;
  return !may_have_libuv(SharedLibrary(package + "/lib/libtorch_cpu.so"));
}

}  // namespace ddp::agent

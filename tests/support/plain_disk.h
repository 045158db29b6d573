#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/checkpoint/file_system.h"

namespace ddp::test {

// As another one, which outlives it, or as the real one: for deriving from.
class PlainDisk : public checkpoint::FileSystem {
 public:
  explicit PlainDisk(checkpoint::FileSystem& disk = checkpoint::posix_file_system())
      : disk_(disk) {}

  Result<std::unique_ptr<checkpoint::WritableFile>> create_file(const std::string& path) override {
    return disk_.create_file(path);
  }
  Result<std::unique_ptr<checkpoint::ReadableFile>> open_file(const std::string& path) override {
    return disk_.open_file(path);
  }
  Result<std::shared_ptr<const checkpoint::MappedFile>> map_file(const std::string& path) override {
    return disk_.map_file(path);
  }
  Result<void> make_directory(const std::string& path) override {
    return disk_.make_directory(path);
  }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return disk_.list(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return disk_.rename(from, to);
  }
  Result<void> remove_file(const std::string& path) override { return disk_.remove_file(path); }
  Result<void> remove_directory(const std::string& path) override {
    return disk_.remove_directory(path);
  }
  Result<void> sync_directory(const std::string& path) override {
    return disk_.sync_directory(path);
  }
  Result<void> make_symlink(const std::string& target, const std::string& path) override {
    return disk_.make_symlink(target, path);
  }

 private:
  checkpoint::FileSystem& disk_;
};

}  // namespace ddp::test

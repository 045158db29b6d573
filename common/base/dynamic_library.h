#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

namespace ddp {

// A shared library loaded at run time. It stays loaded for the life of the process: libraries that
// start threads of their own, as NCCL and CUDA do, cannot be unloaded safely. Copies are the same
// library. Any thread.
class DynamicLibrary {
 public:
  // The first of `names` (paths, or names that the dynamic linker looks up) that can be loaded. One
  // that the process has loaded already is preferred. kNotFound: the message has what the linker
  // said about each.
  static Result<DynamicLibrary> open(const std::vector<std::string>& names);

  const std::string& name() const { return name_; }
  // nullptr if the library has no such symbol.
  void* symbol(const char* symbol_name) const;

 private:
  DynamicLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  void* handle_;
  std::string name_;
};

// Finds functions by name and remembers the first required one that is missing.
class Symbols {
 public:
  explicit Symbols(const DynamicLibrary& library) : library_(library) {}

  template <typename Function>
  void need(Function& function, const char* name) {
    want(function, name);
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  template <typename Function>
  void want(Function& function, const char* name) {
    function = reinterpret_cast<Function>(library_.symbol(name));
  }
  const std::string& missing() const { return missing_; }

 private:
  const DynamicLibrary& library_;
  std::string missing_;
};

}  // namespace ddp

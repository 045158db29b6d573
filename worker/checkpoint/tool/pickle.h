#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::checkpoint {

// Writes Python's pickle format, protocol 2: the few opcodes that a dict of tensors needs, which
// every version of torch's restricted unpickler knows. The caller must call them in a valid order;
// this class does not check it.
class Pickle {
 public:
  Pickle();

  void empty_dict() { code('}'); }
  void mark() { code('('); }
  void set_items() { code('u'); }  // Puts the pairs since the mark into the dict below it.
  void tuple() { code('t'); }      // Makes a tuple of everything since the mark.
  void empty_tuple() { code(')'); }
  void reduce() { code('R'); }  // Calls the function below the tuple of arguments.
  void persistent_id() { code('Q'); }
  void no() { code('\x89'); }
  void global(std::string_view module, std::string_view name);
  void text(std::string_view utf8);
  void integer(std::int64_t value);
  // A tuple of integers.
  void integers(const std::vector<std::int64_t>& values);

  // The finished pickle.
  std::string finish();

 private:
  void code(char opcode) { bytes_ += opcode; }
  void little_endian(std::uint64_t value, int bytes);

  std::string bytes_;
};

}  // namespace ddp::checkpoint

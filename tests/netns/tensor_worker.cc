#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/runtime/process_group.h"

// Two ranks of two nodes that say texts to each other in every way that the library has: rank 0
// broadcasts one, both gather one, and each sends one to the other, also in a sub-group.
namespace {

std::string text_of(const char* what, int rank) {
  std::string text;
  for (int line = 0; line < 20'000; ++line)
    text += fmt::format("{}-of-rank-{} {:08} ", what, rank, line);
  return text;
}

ddp::Buffer bytes_of(std::string& text) { return {text.data(), text.size(), ddp::DType::kU8}; }

void expect_equal(const std::string& got, const std::string& wanted) {
  if (got == wanted) return;
  std::cerr << "wrong bytes have arrived" << std::endl;
  std::_Exit(1);
}

void exchange(ddp::ProcessGroup& group, const char* what) {
  const int other = 1 - group.rank();
  std::string own = text_of(what, group.rank());
  std::string theirs(own.size(), ' ');
  const auto sent = group.send(bytes_of(own), other);
  group.recv(bytes_of(theirs), other)->wait();
  sent->wait();
  expect_equal(theirs, text_of(what, other));
}

}  // namespace

int main() {
  try {
    const auto group = ddp::ProcessGroup::from_environment();
    std::string broadcast = text_of("a-broadcast", 0);
    if (group->rank() != 0) broadcast.assign(broadcast.size(), ' ');
    group->broadcast(bytes_of(broadcast), 0)->wait();
    expect_equal(broadcast, text_of("a-broadcast", 0));
    std::string part = text_of("a-tensor", group->rank());
    std::string all(2 * part.size(), ' ');
    group->all_gather(bytes_of(part), bytes_of(all))->wait();
    expect_equal(all, text_of("a-tensor", 0) + text_of("a-tensor", 1));
    exchange(*group, "a-message");
    const auto sub_group = group->new_group(std::vector<ddp::Rank>{0, 1});
    exchange(*sub_group, "a-sub-group");
    group->barrier()->wait();
    std::cout << "everything has arrived" << std::endl;
    return 0;
  } catch (const ddp::CollectiveError& error) {
    std::cerr << error.what() << std::endl;
    return ddp::kExitCollectiveFailed;
  }
}

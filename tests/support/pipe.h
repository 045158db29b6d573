#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"

namespace ddp::test {

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  // Until all copies of the write end are closed; what is there now, if the read end does not
  // block.
  std::string read_all() const {
    std::string all;
    char buffer[64 * 1024];
    for (ssize_t size; (size = ::read(read.get(), buffer, sizeof(buffer))) > 0;)
      all.append(buffer, static_cast<std::size_t>(size));
    return all;
  }

  UniqueFd read;
  UniqueFd write;
};

}  // namespace ddp::test

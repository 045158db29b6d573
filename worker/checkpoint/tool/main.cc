#include <iostream>
#include <string>
#include <vector>

#include "worker/checkpoint/tool/tool.h"

int main(int argc, char** argv) {
  return ddp::checkpoint::run_tool(std::vector<std::string>(argv + 1, argv + argc), std::cout,
                                   std::cerr);
}

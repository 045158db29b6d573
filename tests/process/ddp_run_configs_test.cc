#include <algorithm>
#include <fstream>

#include "tests/process/ddp_run_fixture.h"

namespace ddp::test {
namespace {

using Variables = std::map<std::string, std::string>;

std::vector<std::filesystem::path> config_files() {
  const char* source = std::getenv("DDP_SOURCE_DIR");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(source != nullptr ? source : ".") / "configs")) {
    if (entry.path().extension() == ".env") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Variables read_config(const std::filesystem::path& file) {
  Variables variables;
  std::ifstream text(file);
  for (std::string line; std::getline(text, line);) {
    const auto equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) continue;
    variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

class DdpRunConfigs : public DdpRunTest {};

// Every example as it stands, but for what depends on the place: the endpoint's address.
TEST_F(DdpRunConfigs, EveryExampleRuns) {
  const auto files = config_files();
  ASSERT_GE(files.size(), 4U);
  for (const auto& file : files) {
    SCOPED_TRACE(file.string());
    const Variables variables = read_config(file);
    ASSERT_FALSE(variables.empty());
    for (const auto& [name, value] : variables) EXPECT_TRUE(name.starts_with("PET_")) << name;
    const auto nnodes = variables.find("PET_NNODES");
    const int nodes = nnodes == variables.end() ? 1 : std::atoi(nnodes->second.c_str());
    Arguments arguments{"--rdzv-endpoint", "127.0.0.1:" + std::to_string(free_port()), "sh", "-c",
                        "echo worker of $WORLD_SIZE"};
    // A range waits for more nodes until its last call, which would only make the test slow.
    if (nnodes != variables.end() && nnodes->second.find(':') != std::string::npos) {
      arguments.insert(arguments.begin(), {"--rdzv-conf", "last_call_timeout=0.2"});
    }
    std::vector<Process*> jobs;
    for (int i = 0; i < nodes; ++i) jobs.push_back(&start(arguments, variables));
    for (Process* job : jobs) {
      EXPECT_EQ(job->wait(), 0) << job->err();
      EXPECT_THAT(job->out(), testing::HasSubstr("worker of "));
    }
  }
}

}  // namespace
}  // namespace ddp::test

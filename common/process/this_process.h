#pragma once

#include <string>
#include <vector>

// What a process can learn about itself.
namespace ddp {

// NAME=VALUE for each variable. No other thread may change the environment meanwhile.
std::vector<std::string> own_environment();

// The path of the program's file; empty if /proc does not tell.
std::string own_executable();

// Where a program of this name is if it is installed beside the running one. It may not be there;
// empty if /proc does not tell.
std::string program_beside(const std::string& name);

// Names the monotonic clock: equal for processes for which it shows the same, whatever container
// they are in. Empty if the system does not tell.
std::string clock_name();

// Whether this process ignores the signal. nohup, for example, starts programs with a signal
// ignored, and it must stay ignored.
bool is_ignored(int signal);

// The numbers of the CPUs that the calling thread may use, in ascending order, also beyond 1023,
// where the C library's cpu_set_t ends. Empty if the system does not tell.
std::vector<int> allowed_cpus();

}  // namespace ddp

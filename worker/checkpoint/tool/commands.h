#pragma once

#include <array>
#include <ostream>
#include <string>
#include <vector>

// The commands of ddp-checkpoint, one source file each. `arguments` are those after the command's
// name, never `--help`. They return the exit status.
namespace ddp::checkpoint {

int run_ls(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
int run_verify(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
int run_show(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
int run_export(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
int run_import(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
int run_write(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

extern const char kLsHelp[];
extern const char kVerifyHelp[];
extern const char kShowHelp[];
extern const char kExportHelp[];
extern const char kImportHelp[];
extern const char kWriteHelp[];

struct Command {
  const char* name;
  const char* summary;  // One line.
  const char* help;     // What `ddp-checkpoint NAME --help` prints.
  int (*run)(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
};

inline constexpr std::array<Command, 6> kCommands = {{
    {"ls", "lists the checkpoints of a folder, newest first; a quick check", kLsHelp, run_ls},
    {"verify", "reads every byte of checkpoints against their checksums", kVerifyHelp, run_verify},
    {"show", "prints what is in a checkpoint", kShowHelp, run_show},
    {"export", "writes a module's tensors to a file for PyTorch or safetensors", kExportHelp,
     run_export},
    {"import", "makes a checkpoint from a safetensors file", kImportHelp, run_import},
    {"write", "finishes a save from a snapshot in memory; started by ddp-agent", kWriteHelp,
     run_write},
}};

}  // namespace ddp::checkpoint

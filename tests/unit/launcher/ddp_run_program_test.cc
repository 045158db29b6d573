// Which programs run with Python, judged by their contents and not by their names.
#include "launcher/plan/program.h"
#include "launcher/plan/python_program.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::plan {
namespace {

using flags::options_of;
using testing::ElementsAre;

const std::string kPythonText = "print('hello')\n";

struct ProgramFile {
  const char* name;
  std::string bytes;
  mode_t mode;
  bool for_python;
};
class ProgramFiles : public testing::TestWithParam<ProgramFile> {};

TEST_P(ProgramFiles, AreForPythonOrNot) {
  const test::TempDir folder;
  EXPECT_EQ(is_for_python(folder.write("program", GetParam().bytes, GetParam().mode)),
            GetParam().for_python);
}

INSTANTIATE_TEST_SUITE_P(
    , ProgramFiles,
    testing::Values(
        ProgramFile{"Text", kPythonText, 0644, true}, ProgramFile{"Empty", "", 0644, true},
        ProgramFile{"ExecutableText", kPythonText, 0755, true},
        ProgramFile{"PythonsInterpreterLine", "#!/usr/bin/env python3\n", 0644, true},
        ProgramFile{"OtherInterpreterLine", "#!/usr/bin/env -S uv run\n", 0644, true},
        ProgramFile{"ExecutableInterpreterLine", "#!/usr/bin/env python3\n", 0755, false},
        ProgramFile{"ShellWithoutPermission", "#!/bin/sh -e\necho\n", 0644, false},
        ProgramFile{"ShellByEnv", "#!/usr/bin/env -S bash\necho\n", 0644, false},
        ProgramFile{"InterpreterLineAlone", "#!", 0644, true},
        ProgramFile{"Zip", std::string("PK\x03\x04\x14\0\0", 7), 0644, true},
        ProgramFile{"ExecutableZip", std::string("PK\x03\x04\x14\0\0", 7), 0755, true},
        ProgramFile{"ZipApp", std::string("#!/usr/bin/python3\nPK\x03\x04\0", 24), 0644, true},
        ProgramFile{"ExecutableZipApp", std::string("#!/usr/bin/python3\nPK\x03\x04\0", 24), 0755,
                    false},
        ProgramFile{"ByteCode", std::string("\xa7\x0d\x0d\x0a\0\0\0\0", 8), 0644, true},
        ProgramFile{"Elf",
                    std::string("\x7f"
                                "ELF\x02\x01\0",
                                7),
                    0755, false},
        ProgramFile{"ElfWithoutPermission",
                    std::string("\x7f"
                                "ELF\x02\x01\0",
                                7),
                    0644, false},
        ProgramFile{"OtherBytes", std::string("MZ\0\0", 4), 0755, false}),
    [](const auto& row) { return row.param.name; });

TEST(ProgramFolder, NeedsAMain) {
  const test::TempDir folder;
  EXPECT_FALSE(is_for_python(folder.path()));
  EXPECT_FALSE(is_for_python(folder.path() / "missing"));
  folder.write("__main__.py", kPythonText);
  EXPECT_TRUE(is_for_python(folder.path()));
  EXPECT_FALSE(is_for_python("/dev/null"));
}

TEST(ProgramCommand, IsPythonsWhateverTheName) {
  const test::TempDir folder;
  flags::Options options = options_of({folder.write("train", kPythonText), "--lr", "1"});
  EXPECT_THAT(worker_command(options),
              ElementsAre("python3", "-u", options.spec.program, "--lr", "1"));
  options.no_python = true;
  EXPECT_THAT(worker_command(options), ElementsAre(options.spec.program, "--lr", "1"));
}

TEST(ProgramCommand, AFileHereComesBeforeAProgramOfPathUnlessItIsExecutable) {
  const test::TempDir folder;
  const test::TempDir programs;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const flags::Environment environment{{"PATH", programs.path()}};
  folder.write("train", kPythonText, 0755);
  EXPECT_THAT(worker_command(options_of({"train"}, environment)),
              ElementsAre("python3", "-u", "train"));
  programs.script("train", "");
  EXPECT_THAT(worker_command(options_of({"train"}, environment)), ElementsAre("train"));
  EXPECT_THAT(worker_command(options_of({"./train"}, environment)),
              ElementsAre("python3", "-u", "./train"));
  folder.write("train", kPythonText, 0644);
  EXPECT_THAT(worker_command(options_of({"train"}, environment)),
              ElementsAre("python3", "-u", "train"));
  folder.write("train", "#!/bin/sh\n", 0644);
  EXPECT_THAT(worker_command(options_of({"train"}, environment)), ElementsAre("train"));
  std::filesystem::current_path(before);
}

TEST(ProgramPython, IsWhatRunsTheWorkersAsFarAsThatCanBeSeen) {
  const test::TempDir folder;
  const flags::Environment here{{"PYTHON_EXEC", "/opt/python3.13"}};
  const std::string script = folder.write("train.py", kPythonText);
  EXPECT_EQ(python_of(options_of({script}, here)), "/opt/python3.13");
  EXPECT_EQ(python_of(options_of({"-m", "train"}, here)), "/opt/python3.13");
  EXPECT_EQ(python_of(options_of({"--no-python", "/usr/bin/python3", script}, here)),
            "/usr/bin/python3");
  EXPECT_EQ(python_of(options_of({"numactl", "-m", "0", "python3.11", script}, here)),
            "python3.11");
  const std::string own = folder.write("own", "#!/usr/bin/env -S python3 -u\n" + kPythonText, 0755);
  EXPECT_EQ(python_of(options_of({"--no-python", own}, here)), "python3");
  EXPECT_EQ(python_of(options_of({"/bin/true", "pythonic", "python3 x.py"}, here)), "");
  EXPECT_EQ(python_of(options_of({folder.script("train.sh", "python3 train.py")}, here)), "");
}

}  // namespace
}  // namespace ddp::plan

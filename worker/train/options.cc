#include "worker/train/options.h"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "common/base/exit_codes.h"

namespace ddp::train {
namespace {

namespace po = boost::program_options;

// A value that cannot be used; text is "--flag value: what would be right".
struct BadValue {
  std::string text;
};

// Reads the values that were given into the members that they set.
class Values {
 public:
  explicit Values(const po::variables_map& given) : given_(given) {}

  void read(const char* flag, std::string& value) const {
    if (given_.count(flag) != 0) value = given_[flag].as<std::string>();
  }

  template <typename Integer>
  void read(const char* flag, Integer& value, Integer low,
            Integer high = std::numeric_limits<Integer>::max()) const {
    if (given_.count(flag) == 0) return;
    const std::string& text = given_[flag].as<std::string>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
      throw BadValue{
          fmt::format("--{} {}: expected a whole number from {} to {}", flag, text, low, high)};
    }
  }

  // In (low, high), or [low, high) if `with_low`.
  void read(const char* flag, double& value, double low, double high, bool with_low) const {
    if (given_.count(flag) == 0) return;
    const std::string& text = given_[flag].as<std::string>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number =
        error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    if (!number || value >= high || (with_low ? value < low : value <= low)) {
      throw BadValue{fmt::format("--{} {}: expected a number {} {} and less than {}", flag, text,
                                 with_low ? "of at least" : "greater than", low, high)};
    }
  }

  template <typename Choice>
  void read_choice(const char* flag, Choice& value,
                   std::initializer_list<std::pair<const char*, Choice>> choices) const {
    if (given_.count(flag) == 0) return;
    const std::string& text = given_[flag].as<std::string>();
    std::string names;
    for (const auto& [name, choice] : choices) {
      if (text == name) {
        value = choice;
        return;
      }
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    }
    throw BadValue{fmt::format("--{} {}: expected one of {}", flag, text, names)};
  }

  bool has(const char* flag) const { return given_.count(flag) != 0; }

 private:
  const po::variables_map& given_;
};

struct FlagText {
  const char* flag;
  const char* value;  // "" for a flag without one.
  const char* text;
};

constexpr FlagText kFlags[] = {
    {"model", "NAME",
     "mnist (two convolutions, two linear layers) or toy (two linear layers); mnist"},
    {"data", "KIND",
     "synthetic (digits drawn by the program), fake (fixed random numbers) or mnist (the IDX files "
     "in --data-dir); synthetic, and fake for the toy model"},
    {"data-dir", "DIR", "folder of MNIST's four files, each plain or .gz"},
    {"train-samples", "N", "size of the synthetic or fake training set; 12000"},
    {"test-samples", "N", "size of the synthetic or fake test set; 2000"},
    {"batch-size", "N", "samples of a step and worker; 128"},
    {"epochs", "N", "18"},
    {"max-steps", "N", "stop after this step of the whole training; 0, no limit"},
    {"lr", "X", "learning rate of SGD, multiplied by the number of workers; 0.01"},
    {"momentum", "X", "of SGD; 0.5"},
    {"seed", "N", "of the first weights, the order of the data and the synthetic data; 1"},
    {"no-batch-norm", "", "leave batch normalisation out of the mnist model"},
    {"grad-sync", "MODE",
     "ddp (gradients are averaged during backward) or step (by the optimizer's step); ddp"},
    {"checkpoint-dir", "DIR",
     "save checkpoints there, and resume from the newest valid one; no checkpoints"},
    {"checkpoint-every", "STEPS",
     "also save after every so many steps; 0, at the end of each epoch only"},
    {"checkpoint-keep", "N", "how many of the newest checkpoints stay, 0 keeps all; 3"},
    {"checkpoint-failure", "stop|continue", "what to do if one cannot be written; stop"},
    {"summary", "FILE", "write the result there as one JSON object"},
    {"log-every", "STEPS",
     "a line of progress every so many steps, where standard output is no terminal; 20"},
    {"threads", "N",
     "of one worker; OMP_NUM_THREADS, or the usable cores shared by the workers of a node"},
    {"timeout", "SECONDS", "how long a collective operation may take; 600"},
    {"help", "", "print this text"},
    {"version", "", "print the version"},
};

po::options_description describe() {
  po::options_description flags("Flags, and their defaults", 100);
  for (const FlagText& flag : kFlags) {
    if (*flag.value == '\0') {
      flags.add_options()(flag.flag, flag.text);
    } else {
      flags.add_options()(flag.flag, po::value<std::string>()->value_name(flag.value), flag.text);
    }
  }
  return flags;
}

void read_values(const Values& values, Options& options) {
  values.read_choice<std::string>("model", options.model, {{"mnist", "mnist"}, {"toy", "toy"}});
  values.read_choice<std::string>(
      "data", options.data, {{"synthetic", "synthetic"}, {"fake", "fake"}, {"mnist", "mnist"}});
  values.read("data-dir", options.data_dir);
  constexpr std::int64_t kManySamples = 10'000'000;
  values.read<std::int64_t>("train-samples", options.train_samples, 1, kManySamples);
  values.read<std::int64_t>("test-samples", options.test_samples, 1, kManySamples);
  values.read<std::int64_t>("batch-size", options.batch_size, 1, kManySamples);
  values.read<std::int64_t>("epochs", options.epochs, 1, 1'000'000'000);
  values.read<std::int64_t>("max-steps", options.max_steps, 0);
  values.read("lr", options.lr, 0, 1e6, false);
  values.read("momentum", options.momentum, 0, 1, true);
  // torch::manual_seed takes seed + rank, which must not wrap around.
  values.read<std::uint64_t>("seed", options.seed, 0, std::numeric_limits<std::uint32_t>::max());
  options.batch_norm = !values.has("no-batch-norm");
  values.read_choice<GradSync>("grad-sync", options.grad_sync,
                               {{"ddp", GradSync::kDdp}, {"step", GradSync::kStep}});
  values.read("checkpoint-dir", options.checkpoint_dir);
  values.read<std::int64_t>("checkpoint-every", options.checkpoint_every, 0);
  values.read<int>("checkpoint-keep", options.checkpoint_keep, 0, 1'000'000);
  values.read_choice<OnCheckpointFailure>(
      "checkpoint-failure", options.checkpoint_failure,
      {{"stop", OnCheckpointFailure::kStop}, {"continue", OnCheckpointFailure::kContinue}});
  values.read("summary", options.summary);
  values.read<std::int64_t>("log-every", options.log_every, 1);
  values.read<int>("threads", options.threads, 1, 4096);
  values.read("timeout", options.timeout_seconds, 0, 1e6, false);
}

// What a value means together with the others.
void check_together(const Values& values, Options& options) {
  if (options.data.empty()) options.data = options.model == "toy" ? "fake" : "synthetic";
  if (options.model == "toy" && options.data != "fake") {
    throw BadValue{
        fmt::format("--data {}: expected fake, the only data of --model toy", options.data)};
  }
  if (options.data == "mnist" && options.data_dir.empty()) {
    throw BadValue{"--data mnist: expected --data-dir DIR with it, the folder of the IDX files"};
  }
  for (const char* flag : {"data-dir", "checkpoint-dir", "summary"}) {
    std::string path = "-";
    values.read(flag, path);
    if (path.empty()) throw BadValue{fmt::format("--{} '': expected a path", flag)};
  }
  if (options.data != "mnist" && values.has("data-dir")) {
    throw BadValue{fmt::format("--data-dir {}: expected --data mnist with it", options.data_dir)};
  }
  for (const char* flag : {"train-samples", "test-samples"}) {
    if (options.data == "mnist" && values.has(flag)) {
      throw BadValue{fmt::format(
          "--{}: expected --data synthetic or fake with it, mnist has its own size", flag)};
    }
  }
  if (options.checkpoint_dir.empty()) {
    for (const char* flag : {"checkpoint-every", "checkpoint-keep", "checkpoint-failure"}) {
      if (values.has(flag))
        throw BadValue{fmt::format("--{}: expected --checkpoint-dir DIR with it", flag)};
    }
  }
}

std::vector<std::string> with_dashes(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    for (char& c : argument) {
      if (c == '=') break;
      if (c == '_') c = '-';
    }
  }
  return arguments;
}

std::string help_text(const po::options_description& flags) {
  std::ostringstream text;
  text << "usage: ddp-train [flags]\n"
          "Trains a model, alone or as one of the workers that ddp-run starts:\n"
          "  ddp-run --standalone --nproc-per-node 2 ddp-train --checkpoint-dir run1 --summary "
          "run1.json\n\n"
       << flags;
  return text.str();
}

}  // namespace

const char* to_string(GradSync mode) { return mode == GradSync::kDdp ? "ddp" : "step"; }

std::string agreed_flags(const Options& options) {
  std::string text;
  const auto add = [&text](const char* flag, const auto& value) {
    text += fmt::format("--{} {}\n", flag, value);
  };
  add("model", options.model);
  add("data", options.data);
  if (options.data != "mnist") {
    add("train-samples", options.train_samples);
    add("test-samples", options.test_samples);
  }
  add("batch-size", options.batch_size);
  add("epochs", options.epochs);
  add("max-steps", options.max_steps);
  add("lr", options.lr);
  add("momentum", options.momentum);
  add("seed", options.seed);
  add("no-batch-norm", options.batch_norm ? "no" : "yes");
  add("grad-sync", to_string(options.grad_sync));
  add("checkpoint-dir", options.checkpoint_dir.empty() ? "none" : "given");
  add("checkpoint-every", options.checkpoint_every);
  add("checkpoint-failure",
      options.checkpoint_failure == OnCheckpointFailure::kStop ? "stop" : "continue");
  return text;
}

ParsedOptions parse_options(int argc, const char* const* argv) {
  const po::options_description flags = describe();
  po::variables_map given;
  namespace style = po::command_line_style;
  try {
    const auto parsed =
        po::command_line_parser(with_dashes(argc, argv))
            .options(flags)
            .style(style::allow_long | style::long_allow_next | style::long_allow_adjacent)
            .run();
    for (const auto& option : parsed.options) {
      if (option.position_key < 0) continue;
      return {
          {}, kExitUsage, fmt::format("ddp-train: {}: not a flag; see --help", option.value[0])};
    }
    po::store(parsed, given);
  } catch (const po::error& error) {
    return {{}, kExitUsage, fmt::format("ddp-train: {}; see --help", error.what())};
  }
  if (given.count("help") != 0) return {{}, kExitSuccess, help_text(flags)};
  if (given.count("version") != 0) return {{}, kExitSuccess, "ddp-train " DDP_VERSION "\n"};
  Options options;
  const Values values(given);
  try {
    read_values(values, options);
    check_together(values, options);
  } catch (const BadValue& bad) {
    return {{}, kExitInvalidValue, "ddp-train: " + bad.text};
  }
  return {options, kExitSuccess, ""};
}

}  // namespace ddp::train

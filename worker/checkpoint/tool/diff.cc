#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/exit_codes.h"
#include "worker/checkpoint/tool/arguments.h"
#include "worker/checkpoint/tool/commands.h"
#include "worker/checkpoint/tool/elements.h"
#include "worker/checkpoint/tool/tensor_set.h"

namespace ddp::checkpoint {

const char kDiffHelp[] =
    "usage: ddp-checkpoint diff A B [--module NAME] [--names PATTERN] [--tensors-only]\n"
    "Compares two checkpoints or safetensors files. A folder of checkpoints means its newest valid "
    "one.\n"
    "Prints a line for each tensor that only one has, whose shape or type differs, or whose "
    "elements\n"
    "differ (how many, and the largest difference and its position), and for each value that "
    "differs\n"
    "(step, epoch, number of ranks, hyper-parameters, registered values). Elements differ if "
    "their\n"
    "bits do.\n"
    "  --module NAME     compares only this module, under its names in PyTorch, for example with "
    "a\n"
    "                    file that was exported or that Python wrote\n"
    "  --names PATTERN   only tensors whose name matches: * is any characters, ? one\n"
    "  --tensors-only    does not compare values; --module and --names imply it\n"
    "Exit status 0 if they are equal, 1 if not, 65 if one of them is missing or damaged.\n";

namespace {

using nlohmann::json;

std::string describe(const SetTensor& tensor) {
  return fmt::format("{} [{}]", tensor_type_name(tensor.type), fmt::join(tensor.shape, ", "));
}

std::string place_of(std::uint64_t index, const std::vector<std::int64_t>& shape) {
  std::vector<std::uint64_t> at(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape[i]);
    at[i] = index % size;
    index /= size;
  }
  return fmt::format("[{}]", fmt::join(at, ", "));
}

bool is_nan(const json& value) {
  return value.is_number_float() && std::isnan(value.get<double>());
}

// Prints what differs and counts the lines.
class Comparison {
 public:
  Comparison(const TensorSet& a, const TensorSet& b, std::ostream& out) : a_(a), b_(b), out_(out) {}

  void compare_tensors() {
    auto a = a_.tensors.begin();
    auto b = b_.tensors.begin();
    const auto key = [](const SetTensor& tensor) { return std::tie(tensor.rank, tensor.name); };
    while (a != a_.tensors.end() || b != b_.tensors.end()) {
      if (b == b_.tensors.end() || (a != a_.tensors.end() && key(*a) < key(*b))) {
        line("{}: only in {} ({})", a->title(), a_.path, describe(*a));
        ++a;
      } else if (a == a_.tensors.end() || key(*b) < key(*a)) {
        line("{}: only in {} ({})", b->title(), b_.path, describe(*b));
        ++b;
      } else {
        compare(*a++, *b++);
      }
    }
  }

  void compare_manifests() {
    const Manifest& a = a_.manifest;
    const Manifest& b = b_.manifest;
    compare("step", a.step, b.step);
    compare("epoch", a.epoch, b.epoch);
    compare("world size", a.world_size, b.world_size);
    compare("state", a.state, b.state);
    for (std::size_t rank = 0; rank < std::min(a.rank_state.size(), b.rank_state.size()); ++rank) {
      compare(fmt::format("state of rank {}", rank), a.rank_state[rank], b.rank_state[rank]);
    }
  }

  std::size_t lines() const { return lines_; }
  std::size_t equal_tensors() const { return equal_tensors_; }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    out_ << fmt::format(format, std::forward<Args>(args)...) << '\n';
    ++lines_;
  }

  void compare(const SetTensor& a, const SetTensor& b) {
    if (a.type != b.type || a.shape != b.shape) {
      line("{}: {} and {}", a.title(), describe(a), describe(b));
      return;
    }
    const TensorDifference difference =
        checkpoint::compare_tensors(a.type, a.data.bytes, b.data.bytes);
    if (difference.elements == 0) {
      ++equal_tensors_;
      return;
    }
    const std::size_t size = tensor_type_bytes(a.type);
    const auto value = [&](const SetTensor& tensor) {
      return element_value(tensor.type, tensor.data.bytes.data() + difference.largest_at * size);
    };
    line("{}: {} of {} elements differ, the largest difference is {} at {}: {} and {}", a.title(),
         difference.elements, a.data.bytes.size() / size, difference.largest,
         place_of(difference.largest_at, a.shape), value(a), value(b));
  }

  // `where` is a path such as state/optimizers/sgd/groups/0/options/lr.
  void compare(const std::string& where, const json& a, const json& b) {
    constexpr auto kReplace = json::error_handler_t::replace;
    if (a.is_object() && b.is_object()) {
      std::set<std::string> keys;
      for (const auto& member : a.items()) keys.insert(member.key());
      for (const auto& member : b.items()) keys.insert(member.key());
      for (const std::string& key : keys) {
        const std::string below = fmt::format("{}/{}", where, key);
        if (!a.contains(key) || !b.contains(key)) {
          line("{}: only in {}", below, a.contains(key) ? a_.path : b_.path);
        } else {
          compare(below, a.at(key), b.at(key));
        }
      }
    } else if (a.is_array() && b.is_array() && a.size() == b.size()) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        compare(fmt::format("{}/{}", where, i), a[i], b[i]);
      }
    } else if (!(a == b) && !(is_nan(a) && is_nan(b))) {  // `!=` of a NaN is false in the library.
      line("{}: {} and {}", where, a.dump(-1, ' ', false, kReplace),
           b.dump(-1, ' ', false, kReplace));
    }
  }

  const TensorSet& a_;
  const TensorSet& b_;
  std::ostream& out_;
  std::size_t lines_ = 0;
  std::size_t equal_tensors_ = 0;
};

Result<void> select(TensorSet& set, const Arguments& arguments) {
  if (arguments.has("module")) {
    if (auto selected = select_module(set, arguments.value("module")); !selected) return selected;
  }
  if (arguments.has("names")) return select_names(set, arguments.value("names"));
  return {};
}

}  // namespace

int run_diff(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  auto parsed =
      parse_arguments({"diff", {"A", "B"}, {"module", "names"}, {"tensors-only"}}, arguments);
  if (!parsed) return report_usage("diff", parsed.error(), err);
  auto a = open_tensor_set(parsed->paths[0], err);
  if (!a) return report("diff", a.error(), kExitDataInvalid, err);
  auto b = open_tensor_set(parsed->paths[1], err);
  if (!b) return report("diff", b.error(), kExitDataInvalid, err);
  for (TensorSet* set : {&*a, &*b}) {
    if (auto selected = select(*set, *parsed); !selected) {
      return report(
          "diff", selected.error(),
          selected.error().code == Errc::kInvalidArgument ? kExitInvalidValue : kExitDataInvalid,
          err);
    }
  }
  Comparison comparison(*a, *b, out);
  comparison.compare_tensors();
  const bool has_values = a->is_checkpoint && b->is_checkpoint && !parsed->has("tensors-only") &&
                          !parsed->has("module") && !parsed->has("names");
  if (has_values) comparison.compare_manifests();
  if (comparison.lines() == 0) {
    out << fmt::format("equal: {} tensors{}\n", comparison.equal_tensors(),
                       has_values ? " and all values" : "");
    return kExitSuccess;
  }
  out << fmt::format("different: {} lines above; {} tensors are equal\n", comparison.lines(),
                     comparison.equal_tensors());
  return 1;
}

}  // namespace ddp::checkpoint

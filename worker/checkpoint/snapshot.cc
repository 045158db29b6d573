#include "worker/checkpoint/snapshot.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/json_values.h"
#include "worker/checkpoint/safetensors.h"

namespace ddp::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kSnapshotMagic = "DDPSNAP\n";
constexpr std::uint32_t kSnapshotVersion = 1;
constexpr std::uint32_t kSealed = 0x5ea1edu;
constexpr std::size_t kChecksumDigits = 32;
constexpr std::size_t kMaxSaveId = 64;

// The first bytes of a snapshot.
struct SnapshotHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t sealed;  // Written last.
  std::uint64_t data_end;
  std::uint64_t plan_bytes;
  char plan_checksum[kChecksumDigits];
  char header_checksum[kChecksumDigits];  // Of the fields above, with sealed = 0.
};
static_assert(sizeof(SnapshotHeader) <= kSnapshotHeaderBytes);
static_assert(offsetof(SnapshotHeader, header_checksum) + kChecksumDigits ==
              sizeof(SnapshotHeader));

template <typename... Args>
Error bad_snapshot(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(Errc::kCorrupt, format, std::forward<Args>(args)...);
}

std::string checksum_of_header(SnapshotHeader header) {
  header.sealed = 0;
  return checksum_of(
      std::as_bytes(std::span(&header, 1)).first(offsetof(SnapshotHeader, header_checksum)));
}

bool is_word(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.") ==
             std::string_view::npos;
}

bool is_save_id(std::string_view text) {
  return is_word(text) && text.size() <= kMaxSaveId && text.find('.') == std::string_view::npos;
}

// Names that writers use among themselves are not allowed as file names.
bool is_snapshot_file(std::string_view name) {
  return is_word(name) && name.ends_with(".safetensors") && !name.starts_with('.');
}

// Why this plan cannot be written; nothing if it can.
std::optional<std::string> complaint_about(const SnapshotPlan& plan) {
  if (plan.directory.empty()) return "no directory is given";
  if (!is_save_id(plan.save_id)) return fmt::format("\"{}\" is not a valid save id", plan.save_id);
  if (plan.step < 0) return fmt::format("step {} is negative", plan.step);
  if (plan.world_size < 1 || plan.rank < 0 || plan.rank >= plan.world_size) {
    return fmt::format("rank {} is not in a world of size {}", plan.rank, plan.world_size);
  }
  if (plan.retention.keep < 0 || plan.retention.keep_every < 0) {
    return fmt::format("keep {} and keep every {} must not be negative", plan.retention.keep,
                       plan.retention.keep_every);
  }
  if (!plan.state.is_object() || !plan.rank_state.is_object()) return "state is not an object";
  std::set<std::string_view> file_names;
  std::set<std::pair<Rank, std::string_view>> tensor_names;
  for (const SnapshotFile& file : plan.files) {
    if (!is_snapshot_file(file.name)) return fmt::format("\"{}\" is not a file name", file.name);
    if (!file_names.insert(file.name).second)
      return fmt::format("file {} is listed twice", file.name);
    if (file.owner != kReplicated && file.owner != plan.rank) {
      return fmt::format("file {} belongs to rank {}", file.name, file.owner);
    }
    for (const SnapshotTensor& tensor : file.tensors) {
      if (!tensor_names.insert({file.owner, tensor.name}).second) {
        return fmt::format("tensor \"{}\" is listed twice", tensor.name);
      }
      if (tensor.shape.size() > kMaxTensorDimensions || !tensor_bytes(tensor.type, tensor.shape)) {
        return fmt::format("the shape of tensor \"{}\" is malformed", tensor.name);
      }
    }
  }
  return std::nullopt;
}

// Gives each tensor its offset and returns where the last one ends.
std::uint64_t place_tensors(std::vector<SnapshotFile>& files) {
  std::uint64_t end = kSnapshotHeaderBytes;
  for (SnapshotFile& file : files) {
    std::sort(file.tensors.begin(), file.tensors.end(),
              [](const SnapshotTensor& a, const SnapshotTensor& b) {
                return lies_before(a.type, a.name, b.type, b.name);
              });
    end = (end + kSnapshotAlignment - 1) / kSnapshotAlignment * kSnapshotAlignment;
    std::map<std::tuple<std::uint64_t, std::uint64_t, std::size_t>, std::uint64_t> shared;
    for (SnapshotTensor& tensor : file.tensors) {
      // The element's size is part of the key, because a smaller element may be less aligned.
      const auto key = std::tuple(tensor.storage, tensor.bytes(), tensor_type_bytes(tensor.type));
      if (const auto found = shared.find(key); tensor.storage != 0 && found != shared.end()) {
        tensor.offset = found->second;
        continue;
      }
      // Element sizes decrease, so the end of each tensor is aligned for all that follow.
      tensor.offset = end;
      end += tensor.bytes();
      shared[key] = tensor.offset;
    }
  }
  return end;
}

Result<std::string> plan_text_of(const SnapshotPlan& plan) {
  auto state = encode_values(plan.state);
  if (!state) return state.error();
  auto rank_state = encode_values(plan.rank_state);
  if (!rank_state) return rank_state.error();
  json files = json::array();
  for (const SnapshotFile& file : plan.files) {
    json tensors = json::array();
    for (const SnapshotTensor& tensor : file.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"dtype", tensor_type_name(tensor.type)},
                         {"shape", tensor.shape},
                         {"offset", tensor.offset}});
    }
    files.push_back({{"name", file.name}, {"owner", file.owner}, {"tensors", std::move(tensors)}});
  }
  const json root = {{"directory", plan.directory},
                     {"save_id", plan.save_id},
                     {"job_id", plan.job_id},
                     {"step", plan.step},
                     {"epoch", plan.epoch},
                     {"round", plan.round},
                     {"world_size", plan.world_size},
                     {"rank", plan.rank},
                     {"files", std::move(files)},
                     {"state", std::move(*state)},
                     {"rank_state", std::move(*rank_state)},
                     {"keep", plan.retention.keep},
                     {"keep_every", plan.retention.keep_every},
                     {"damaged", plan.damaged},
                     {"bytes_per_second", plan.bytes_per_second},
                     {"timeout_ms", plan.timeout.count()}};
  try {
    return root.dump();
  } catch (const json::exception& error) {
    return make_error(Errc::kInvalidArgument, "a name is not UTF-8: {}", error.what());
  }
}

Result<SnapshotTensor> parse_snapshot_tensor(const json& item, std::uint64_t data_end) {
  SnapshotTensor tensor;
  tensor.name = item.at("name").get<std::string>();
  tensor.shape = integers(item.at("shape"));
  tensor.offset = integer<std::uint64_t>(item.at("offset"));
  const auto type = tensor_type_from_name(item.at("dtype").get_ref<const std::string&>());
  if (!type) return bad_snapshot("the type of tensor \"{}\" is unknown", tensor.name);
  tensor.type = *type;
  const auto bytes = tensor_bytes(*type, tensor.shape);
  if (!bytes) return bad_snapshot("the shape of tensor \"{}\" is malformed", tensor.name);
  if (tensor.offset < kSnapshotHeaderBytes || tensor.offset > data_end ||
      *bytes > data_end - tensor.offset) {
    return bad_snapshot("tensor \"{}\" lies outside the snapshot", tensor.name);
  }
  return tensor;
}

// Throws json::exception where a member is missing or of another type.
Result<SnapshotPlan> parse_plan(const json& root, std::uint64_t data_end) {
  SnapshotPlan plan;
  plan.directory = root.at("directory").get<std::string>();
  plan.save_id = root.at("save_id").get<std::string>();
  plan.job_id = root.at("job_id").get<std::string>();
  plan.step = integer<std::int64_t>(root.at("step"));
  plan.epoch = integer<std::int64_t>(root.at("epoch"));
  plan.round = integer<Round>(root.at("round"));
  plan.world_size = integer<int>(root.at("world_size"));
  plan.rank = integer<Rank>(root.at("rank"));
  plan.retention.keep = integer<int>(root.at("keep"));
  plan.retention.keep_every = integer<std::int64_t>(root.at("keep_every"));
  plan.damaged = root.value("damaged", std::vector<std::string>());
  plan.bytes_per_second = integer<std::uint64_t>(root.at("bytes_per_second"));
  plan.timeout = std::chrono::milliseconds(integer<std::int64_t>(root.at("timeout_ms")));
  auto state = decode_values(root.at("state"));
  if (!state) return state.error();
  plan.state = std::move(*state);
  auto rank_state = decode_values(root.at("rank_state"));
  if (!rank_state) return rank_state.error();
  plan.rank_state = std::move(*rank_state);
  for (const json& item : root.at("files")) {
    SnapshotFile file;
    file.name = item.at("name").get<std::string>();
    file.owner = integer<Rank>(item.at("owner"));
    for (const json& tensor_item : item.at("tensors")) {
      auto tensor = parse_snapshot_tensor(tensor_item, data_end);
      if (!tensor) return tensor.error();
      file.tensors.push_back(std::move(*tensor));
    }
    plan.files.push_back(std::move(file));
  }
  if (auto complaint = complaint_about(plan)) return bad_snapshot("{}", *complaint);
  return plan;
}

Result<SnapshotHeader> checked_header(std::span<const std::byte> memory) {
  if (memory.size() < kSnapshotHeaderBytes) {
    return bad_snapshot("the snapshot has {} bytes, but its header alone needs {}", memory.size(),
                        kSnapshotHeaderBytes);
  }
  SnapshotHeader header;
  std::memcpy(&header, memory.data(), sizeof header);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (std::string_view(header.magic, sizeof header.magic) != kSnapshotMagic ||
      header.version != kSnapshotVersion) {
    return bad_snapshot("this is not a snapshot of version {}", kSnapshotVersion);
  }
  if (header.sealed != kSealed)
    return bad_snapshot("the snapshot is not sealed: its copy was cut short");
  if (checksum_of_header(header) != std::string_view(header.header_checksum, kChecksumDigits)) {
    return bad_snapshot("the checksum of the header is wrong");
  }
  if (header.data_end < kSnapshotHeaderBytes || header.data_end > memory.size() ||
      header.plan_bytes > memory.size() - header.data_end) {
    return bad_snapshot(
        "data up to byte {} and a plan of {} bytes do not fit into a snapshot of {} bytes",
        header.data_end, header.plan_bytes, memory.size());
  }
  return header;
}

std::uint32_t* sealed_word(std::span<std::byte> memory) {
  return reinterpret_cast<std::uint32_t*>(memory.data() + offsetof(SnapshotHeader, sealed));
}

}  // namespace

Manifest SnapshotPlan::common_manifest() const {
  Manifest manifest;
  manifest.step = step;
  manifest.epoch = epoch;
  manifest.round = round;
  manifest.world_size = world_size;
  manifest.save_id = save_id;
  return manifest;
}

std::string shard_file_name(Rank rank) { return fmt::format("shard-{:05}.safetensors", rank); }
std::string rank_file_name(Rank rank) { return fmt::format("rank-{:05}.safetensors", rank); }

Result<void> check_plan(const SnapshotPlan& plan) {
  const auto complaint = complaint_about(plan);
  if (!complaint) return {};
  return make_error(Errc::kInvalidArgument, "cannot be saved: {}", *complaint);
}

Result<SnapshotLayout> lay_out(SnapshotPlan plan) {
  if (auto good = check_plan(plan); !good) return good.error();
  SnapshotLayout layout;
  layout.data_end = place_tensors(plan.files);
  auto text = plan_text_of(plan);
  if (!text) return text.error();
  // Read it as the writer would: a plan that it cannot read must be an error now.
  auto back = parse_strict(*text, kMaxManifestDepth);
  if (!back || text->size() > kMaxManifestBytes) {
    return make_error(Errc::kInvalidArgument, "the plan of {} bytes would be unreadable: {}",
                      text->size(), back ? "too long" : back.error().message);
  }
  layout.plan_text = std::move(*text);
  layout.bytes = layout.data_end + layout.plan_text.size();
  layout.plan = std::move(plan);
  return layout;
}

void unseal_snapshot(std::span<std::byte> memory) {
  DDP_CHECK(memory.size() >= kSnapshotHeaderBytes, "a snapshot of {} bytes", memory.size());
  std::atomic_ref(*sealed_word(memory)).store(0, std::memory_order_seq_cst);
}

void seal_snapshot(std::span<std::byte> memory, const SnapshotLayout& layout) {
  DDP_CHECK(memory.size() >= layout.bytes, "{} bytes for {}", memory.size(), layout.bytes);
  std::memcpy(memory.data() + layout.data_end, layout.plan_text.data(), layout.plan_text.size());
  SnapshotHeader header{};
  std::memcpy(header.magic, kSnapshotMagic.data(), sizeof header.magic);
  header.version = kSnapshotVersion;
  header.data_end = layout.data_end;
  header.plan_bytes = layout.plan_text.size();
  std::memcpy(header.plan_checksum, checksum_of(layout.plan_text).data(), kChecksumDigits);
  std::memcpy(header.header_checksum, checksum_of_header(header).data(), kChecksumDigits);
  std::memcpy(memory.data(), &header, sizeof header);
  std::atomic_ref(*sealed_word(memory)).store(kSealed, std::memory_order_release);
}

Result<Snapshot> open_snapshot(std::span<const std::byte> memory) {
  auto header = checked_header(memory);
  if (!header) return header.error();
  const auto plan_bytes = memory.subspan(header->data_end, header->plan_bytes);
  const std::string text(reinterpret_cast<const char*>(plan_bytes.data()), plan_bytes.size());
  if (checksum_of(text) != std::string_view(header->plan_checksum, kChecksumDigits)) {
    return bad_snapshot("the checksum of the plan is wrong");
  }
  auto root = parse_strict(text, kMaxManifestDepth);
  if (!root) return bad_snapshot("the plan: {}", root.error().message);
  Snapshot snapshot;
  try {
    auto plan = parse_plan(*root, header->data_end);
    if (!plan) return bad_snapshot("the plan: {}", plan.error().message);
    snapshot.plan = std::move(*plan);
  } catch (const json::exception& error) {
    return bad_snapshot("the plan: a member is missing or has the wrong type: {}", error.what());
  }
  for (const SnapshotFile& file : snapshot.plan.files) {
    auto& spans = snapshot.bytes.emplace_back();
    for (const SnapshotTensor& tensor : file.tensors) {
      spans.push_back(memory.subspan(tensor.offset, tensor.bytes()));
    }
  }
  return snapshot;
}

}  // namespace ddp::checkpoint

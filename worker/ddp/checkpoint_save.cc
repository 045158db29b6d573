#include <exception>

#include <fmt/format.h>

#include "worker/checkpoint/json_values.h"
#include "worker/ddp/checkpoint_hooks.h"
#include "worker/ddp/checkpointer_impl.h"
#include "worker/ddp/exchange.h"
#include "worker/ddp/generator_state.h"

// Checkpointer::save: every rank writes its files into one temporary folder and reports; rank 0
// publishes.
namespace ddp {
namespace {

using nlohmann::json;

constexpr const char* kSaveTag = "checkpoint save";

// What this rank has to write, and the tensors that its views point into.
struct Share {
  std::vector<checkpoint::TensorView> replicated;  // Rank 0 only.
  std::vector<checkpoint::TensorView> per_rank;
  json state = json::object();  // Rank 0 only.
  json rank_state = {{"values", json::object()}};
  std::vector<at::Tensor> keep;
};

Result<void> add_views(const std::vector<StateTensor>& tensors,
                       std::vector<checkpoint::TensorView>& views, std::vector<at::Tensor>& keep) {
  for (const StateTensor& tensor : tensors) {
    auto view = view_of(tensor, keep);
    if (!view) return view.error();
    views.push_back(std::move(*view));
  }
  return {};
}

Result<void> collect_tensors(const Checkpointer::Impl& impl, Share& share) {
  for (const std::string& name : impl.rngs) {
    auto added = add_views({{"rng/" + name, generator_state()}}, share.per_rank, share.keep);
    if (!added) return added;
  }
  if (impl.group->rank() != 0) return {};
  for (const auto& item : impl.modules) {
    auto added = add_views(module_tensors("module/" + item.name + "/", *item.module),
                           share.replicated, share.keep);
    if (!added) return added;
  }
  json optimizers = json::object();
  for (const auto& item : impl.optimizers) {
    OptimizerSnapshot snapshot = item.state->snapshot("optimizer/" + item.name + "/");
    optimizers[item.name] = std::move(snapshot.description);
    if (auto added = add_views(snapshot.tensors, share.replicated, share.keep); !added) {
      return added;
    }
  }
  share.state = {{"values", json::object()}, {"optimizers", std::move(optimizers)}};
  return {};
}

Result<void> collect_hooks(const Checkpointer::Impl& impl, Share& share) {
  for (const auto& item : impl.hooks) {
    auto snapshot = snapshot_hook(item.name, *item.hook);
    if (!snapshot) return snapshot.error();
    auto added = add_views(snapshot->per_rank, share.per_rank, share.keep);
    if (!added) return added;
    if (impl.group->rank() != 0) continue;
    added = add_views(snapshot->replicated, share.replicated, share.keep);
    if (!added) return added;
    share.state["comm_hooks"][item.name] = std::move(snapshot->description);
  }
  return {};
}

Result<void> collect_values(const Checkpointer::Impl& impl, Share& share) {
  for (const auto& value : impl.values) {
    if (!value.per_rank && impl.group->rank() != 0) continue;
    json saved;
    try {
      saved = value.save();
    } catch (const std::exception& error) {
      return make_error(Errc::kInvalidArgument, "saving the value \"{}\" failed: {}", value.name,
                        error.what());
    }
    if (auto storable = checkpoint::encode_values(saved); !storable) {
      return make_error(Errc::kInvalidArgument, "the value \"{}\" cannot be stored: {}", value.name,
                        storable.error().message);
    }
    (value.per_rank ? share.rank_state : share.state)["values"][value.name] = std::move(saved);
  }
  return {};
}

// What a rank tells rank 0 after writing: its part of the manifest.
struct Report {
  std::vector<checkpoint::FileRecord> files;
  std::vector<checkpoint::TensorRecord> tensors;
};

Result<void> write_file(checkpoint::FileSystem& files, const std::string& folder,
                        const std::string& name, Rank owner,
                        const std::vector<checkpoint::TensorView>& views, Report& report) {
  if (views.empty()) return {};
  auto written = checkpoint::write_safetensors(files, checkpoint::join_path(folder, name), views);
  if (!written) return written.error();
  report.files.push_back({name, written->bytes, written->checksum});
  std::map<std::string, std::string> checksums;
  for (auto& tensor : written->tensors) checksums[tensor.name] = std::move(tensor.checksum);
  for (const checkpoint::TensorView& view : views) {
    report.tensors.push_back(
        {view.name, owner, name, view.type, view.shape, checksums.at(view.name)});
  }
  return {};
}

// A manifest is also how a rank sends its report: complete, checked, and every double exact.
Result<std::string> report_text(const Report& report, const Share& share, Rank rank, int size) {
  checkpoint::Manifest manifest;
  manifest.world_size = size;
  manifest.rank_state.assign(static_cast<std::size_t>(size), json::object());
  manifest.rank_state[static_cast<std::size_t>(rank)] = share.rank_state;
  manifest.files = report.files;
  manifest.tensors = report.tensors;
  return checkpoint::manifest_to_text(manifest);
}

Result<checkpoint::Manifest> merge(const std::vector<std::string>& reports) {
  checkpoint::Manifest manifest;
  manifest.world_size = static_cast<int>(reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    auto part = checkpoint::parse_manifest(reports[rank]);
    if (!part) return part.error();
    manifest.rank_state.push_back(std::move(part->rank_state[rank]));
    for (auto& file : part->files) manifest.files.push_back(std::move(file));
    for (auto& tensor : part->tensors) manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

// Removes the temporary folder, unless told that it has become something else.
class Discard {
 public:
  Discard(checkpoint::Directory& directory, std::string temporary)
      : directory_(directory), temporary_(std::move(temporary)) {}
  ~Discard() {
    if (!temporary_.empty()) (void)directory_.discard(temporary_);
  }
  Discard(const Discard&) = delete;
  Discard& operator=(const Discard&) = delete;
  void cancel() { temporary_.clear(); }

 private:
  checkpoint::Directory& directory_;
  std::string temporary_;
};

// An exception (no memory, a parameter that has left the module) must not keep this rank from the
// collectives in which the others wait.
Result<Share> collect_share(const Checkpointer::Impl& impl) {
  try {
    Share share;
    if (auto tensors = collect_tensors(impl, share); !tensors) return tensors.error();
    if (auto hooks = collect_hooks(impl, share); !hooks) return hooks.error();
    if (auto values = collect_values(impl, share); !values) return values.error();
    return share;
  } catch (const std::exception& error) {
    return make_error(Errc::kInvalidArgument, "collecting the state failed: {}", error.what());
  }
}

template <typename T>
Result<void> status_of(const Result<T>& result) {
  if (result) return {};
  return result.error();
}

// Rank 0's registration must be everybody's, or loading would go wrong much later.
Result<void> check_registration(const Checkpointer::Impl& impl) {
  const std::string mine = impl.registration();
  const std::string theirs = broadcast_text(*impl.group, mine, 0, kSaveTag);
  if (mine == theirs) return {};
  return make_error(Errc::kMismatch,
                    "this rank has registered other state than rank 0; here:\n{}there:\n{}", mine,
                    theirs);
}

}  // namespace

Result<std::string> Checkpointer::Impl::save(std::int64_t step, std::int64_t epoch) {
  warnings.clear();
  const bool is_root = group->rank() == 0;
  Result<void> ready = check_registration(*this);
  if (step < 0) ready = make_error(Errc::kInvalidArgument, "step {} is negative", step);
  Result<Share> share = ready ? collect_share(*this) : Result<Share>(ready.error());
  if (auto agreed = agree(*group, status_of(share), kSaveTag); !agreed) return agreed.error();

  Result<std::string> begun = std::string();
  if (is_root) begun = directory.begin(step, unique_word());
  const std::string mine = is_root && begun ? *begun : std::string();
  Discard discard(directory, mine);
  if (auto agreed = agree(*group, status_of(begun), kSaveTag); !agreed) return agreed.error();
  const std::string temporary = broadcast_text(*group, mine, 0, kSaveTag);

  Report report;
  Result<void> written = write_file(files, temporary, "shard-00000.safetensors",
                                    checkpoint::kReplicated, share->replicated, report);
  if (written) {
    written = write_file(files, temporary, fmt::format("rank-{:05}.safetensors", group->rank()),
                         group->rank(), share->per_rank, report);
  }
  Result<std::string> text = written ? report_text(report, *share, group->rank(), group->size())
                                     : Result<std::string>(written.error());
  if (auto agreed = agree(*group, status_of(text), kSaveTag); !agreed) return agreed.error();
  const std::vector<std::string> reports = gather_texts(*group, *text, kSaveTag);

  Result<checkpoint::Entry> published = checkpoint::Entry();
  if (is_root) {
    auto manifest = merge(reports);
    if (manifest) {
      manifest->step = step;
      manifest->epoch = epoch;
      manifest->round = group->round();
      manifest->state = std::move(share->state);
      published = directory.publish(temporary, *manifest);
      if (published) discard.cancel();
    } else {
      published = manifest.error();
    }
  }
  if (auto agreed = agree(*group, status_of(published), kSaveTag); !agreed) return agreed.error();
  const std::string path = broadcast_text(*group, published->path, 0, kSaveTag);
  if (is_root) {
    if (auto linked = directory.update_latest(*published); !linked) {
      warnings.push_back(linked.error().message);
    }
    for (std::string& line : directory.prune(options.keep, *published)) {
      warnings.push_back(std::move(line));
    }
  }
  return path;
}

}  // namespace ddp

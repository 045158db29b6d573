#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "worker/checkpoint/file_system.h"

namespace ddp::test {

// A file system in memory that knows what would survive a power cut, and fails on demand. Contents
// are durable after sync, names after sync_directory of their folder; nothing else is durable.
// Relative paths; one thread.
class MemoryFileSystem final : public checkpoint::FileSystem {
 public:
  enum class Fault {
    kNone,
    kIo,       // This operation fails, without effect.
    kNoSpace,  // Likewise, but a write first writes half of its bytes.
    kStopped,  // This and all later ones fail, as if the process had died.
  };

  MemoryFileSystem() : root_(std::make_shared<Node>(Kind::kFolder)) {}

  // Operations that change something, counted from 0.
  std::size_t operations() const { return operations_; }
  void fail_at(std::size_t operation, Fault fault) {
    fault_at_ = operation;
    fault_ = fault;
  }
  void stop_failing() { fault_ = Fault::kNone; }
  // The most bytes that one write takes.
  void limit_writes(std::size_t bytes) { write_limit_ = bytes; }
  // Opening a file whose path contains this fails with kIo; empty: none fails.
  void fail_opening(std::string part) { unreadable_ = std::move(part); }

  // A sector that the disk cannot read: fetching a part of a mapped file fails with kIo if the part
  // has byte `offset` and the file's path contains `part`.
  void fail_fetching(std::string part, std::size_t offset) {
    unfetchable_ = {std::move(part), offset};
  }

  // What a new process finds if the machine kept running: everything. What was not durable still is
  // not.
  MemoryFileSystem after_kill() const {
    MemoryFileSystem after;
    Copies copies;
    after.root_ = copy(root_, copies);
    return after;
  }
  // What a process finds after a power cut: everything durable, and a random choice of the rest.
  // Any combination of the changes of names happened. Of contents that were not durable, all,
  // nothing or a part is there, or all but a hole.
  MemoryFileSystem after_power_cut(std::mt19937_64& dice) const {
    MemoryFileSystem after;
    after.root_ = survivor(*root_, dice);
    return after;
  }

  // For tests: the contents of a file. Does not count as an operation.
  std::string* contents(const std::string& path) {
    const NodePtr node = find(path);
    return node && node->kind == Kind::kFile ? &node->data : nullptr;
  }
  std::string link_target(const std::string& path) const {
    const NodePtr node = find(path);
    return node && node->kind == Kind::kLink ? node->data : std::string();
  }
  std::vector<std::string> names(const std::string& path) {
    auto listed = list(path);
    if (!listed) return {};
    std::sort(listed->begin(), listed->end());
    return *listed;
  }

  Result<void> make_directory(const std::string& path) override {
    if (find(path)) return make_error(Errc::kExists, "{} already exists", path);
    if (auto failed = step(path); !failed) return failed;
    return link(path, std::make_shared<Node>(Kind::kFolder));
  }

  Result<std::unique_ptr<checkpoint::WritableFile>> create_file(const std::string& path) override {
    if (find(path)) return make_error(Errc::kExists, "{} already exists", path);
    if (auto failed = step(path); !failed) return failed.error();
    auto node = std::make_shared<Node>(Kind::kFile);
    if (auto linked = link(path, node); !linked) return linked.error();
    return std::unique_ptr<checkpoint::WritableFile>(
        std::make_unique<Writable>(*this, std::move(node), path));
  }

  Result<std::unique_ptr<checkpoint::ReadableFile>> open_file(const std::string& path) override {
    const NodePtr node = find_through_links(path);
    if (!node) return make_error(Errc::kNotFound, "{} does not exist", path);
    if (node->kind != Kind::kFile) return make_error(Errc::kCorrupt, "{} is no file", path);
    if (!unreadable_.empty() && path.find(unreadable_) != std::string::npos) {
      return make_error(Errc::kIo, "cannot read {}: Input/output error", path);
    }
    return std::unique_ptr<checkpoint::ReadableFile>(std::make_unique<Readable>(node, path));
  }

  Result<std::shared_ptr<const checkpoint::MappedFile>> map_file(const std::string& path) override {
    if (auto opened = open_file(path); !opened) return opened.error();
    return std::shared_ptr<const checkpoint::MappedFile>(
        std::make_shared<Mapped>(find_through_links(path), path, unfetchable_));
  }

  Result<std::vector<std::string>> list(const std::string& path) override {
    const NodePtr node = find_through_links(path);
    if (!node) return make_error(Errc::kNotFound, "{} does not exist", path);
    if (node->kind != Kind::kFolder) return make_error(Errc::kIo, "{} is no folder", path);
    std::vector<std::string> result;
    for (const auto& [name, child] : node->entries) result.push_back(name);
    return result;
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    const NodePtr node = find(from);
    const NodePtr target = find(to);
    if (!node) return make_error(Errc::kIo, "cannot rename {}: it does not exist", from);
    if (target && target->kind == Kind::kFolder && !target->entries.empty()) {
      return make_error(Errc::kIo, "cannot rename {} to {}: not empty", from, to);
    }
    const NodePtr folder = find(checkpoint::parent_path(from));
    DDP_CHECK(folder == find(checkpoint::parent_path(to)), "only within a folder: {} {}", from, to);
    if (auto failed = step(from); !failed) return failed;
    change(*folder, {{base_name(from), nullptr}, {base_name(to), node}});
    return {};
  }

  Result<void> remove_file(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node) return make_error(Errc::kNotFound, "{} does not exist", path);
    if (node->kind == Kind::kFolder)
      return make_error(Errc::kInvalidArgument, "{} is a folder", path);
    return unlink(path);
  }

  Result<void> remove_directory(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node || node->kind != Kind::kFolder || !node->entries.empty()) {
      return make_error(Errc::kIo, "cannot remove the folder {}", path);
    }
    return unlink(path);
  }

  Result<void> sync_directory(const std::string& path) override {
    if (auto failed = step(path); !failed) return failed;
    const NodePtr node = find(path);
    if (!node || node->kind != Kind::kFolder) return make_error(Errc::kIo, "no folder {}", path);
    node->durable_entries = node->entries;
    node->pending.clear();
    return {};
  }

  Result<void> make_symlink(const std::string& target, const std::string& path) override {
    if (find(path)) return make_error(Errc::kExists, "{} already exists", path);
    if (auto failed = step(path); !failed) return failed;
    auto node = std::make_shared<Node>(Kind::kLink);
    node->data = node->durable_data = target;
    return link(path, node);
  }

 private:
  enum class Kind { kFile, kFolder, kLink };
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  // One atomic change of a folder: each name now refers to this node, or to nothing.
  using NameChange = std::vector<std::pair<std::string, NodePtr>>;
  struct Node {
    explicit Node(Kind of_kind) : kind(of_kind) {}
    Kind kind;
    std::string data;  // Of a file; the target of a link.
    std::string durable_data;
    std::map<std::string, NodePtr> entries;
    std::map<std::string, NodePtr> durable_entries;
    std::vector<NameChange> pending;
  };

  class Writable final : public checkpoint::WritableFile {
   public:
    Writable(MemoryFileSystem& files, NodePtr node, std::string path)
        : files_(files), node_(std::move(node)), path_(std::move(path)) {}
    Result<void> sync() override {
      if (auto failed = files_.step(path_); !failed) return failed;
      node_->durable_data = node_->data;
      return {};
    }
    Result<void> close() override { return files_.step(path_); }

   private:
    Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
      const bool fails = files_.operations_ == files_.fault_at_;
      const bool takes_half = fails && files_.fault_ == Fault::kNoSpace;
      std::size_t count = std::min(bytes.size(), files_.write_limit_);
      auto failed = files_.step(path_);
      if (!failed && !takes_half) return failed.error();
      if (!failed) count /= 2;
      node_->data.append(reinterpret_cast<const char*>(bytes.data()), count);
      if (!failed) return failed.error();
      return count;
    }

    MemoryFileSystem& files_;
    NodePtr node_;
    std::string path_;
  };

  class Readable final : public checkpoint::ReadableFile {
   public:
    Readable(NodePtr node, std::string path) : node_(std::move(node)), path_(std::move(path)) {}
    std::uint64_t size() const override { return node_->data.size(); }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> into) const override {
      if (offset + into.size() > node_->data.size()) {
        return make_error(Errc::kCorrupt, "{} ends early", path_);
      }
      if (!into.empty()) std::memcpy(into.data(), node_->data.data() + offset, into.size());
      return {};
    }

   private:
    NodePtr node_;
    std::string path_;
  };

  using Unfetchable = std::pair<std::string, std::size_t>;
  // Later writes to the file need not be visible here.
  class Mapped final : public checkpoint::MappedFile {
   public:
    Mapped(NodePtr node, std::string path, Unfetchable unfetchable)
        : MappedFile(std::as_bytes(std::span(node->data.data(), node->data.size()))),
          node_(std::move(node)),
          path_(std::move(path)),
          unfetchable_(std::move(unfetchable)) {}
    Result<void> fetch(std::size_t offset, std::size_t count) const override {
      const auto& [part, bad] = unfetchable_;
      if (!part.empty() && path_.find(part) != std::string::npos && offset <= bad &&
          bad < offset + count) {
        return make_error(Errc::kIo, "cannot read {}: Input/output error", path_);
      }
      return {};
    }

   private:
    NodePtr node_;
    std::string path_;
    Unfetchable unfetchable_;
  };

  static std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  // Like the kernel, it goes through links in the middle of a path. Links have relative targets.
  NodePtr find(const std::string& path) const { return find_below(root_, path); }
  NodePtr find_through_links(const std::string& path) const {
    const NodePtr node = find(path);
    if (!node || node->kind != Kind::kLink) return node;
    return find_below(find(checkpoint::parent_path(path)), node->data);
  }
  static NodePtr find_below(NodePtr node, const std::string& path) {
    std::size_t begin = 0;
    while (node && begin < path.size()) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      begin = end + 1;
      if (name.empty() || name == ".") continue;
      const auto child = node->entries.find(name);
      NodePtr next = child == node->entries.end() ? nullptr : child->second;
      if (next && next->kind == Kind::kLink && begin < path.size())
        next = find_below(node, next->data);
      node = std::move(next);
    }
    return node;
  }

  Result<void> step(const std::string& path) {
    const std::size_t operation = operations_++;
    const bool hit = fault_ == Fault::kStopped ? operation >= fault_at_ : operation == fault_at_;
    if (fault_ == Fault::kNone || !hit) return {};
    if (fault_ == Fault::kNoSpace) {
      return make_error(Errc::kIo, "cannot write {}: No space left on device", path);
    }
    return make_error(Errc::kIo, "cannot change {}: Input/output error", path);
  }

  static void change(Node& folder, NameChange names) {
    for (const auto& [name, node] : names) apply(folder.entries, name, node);
    folder.pending.push_back(std::move(names));
  }
  static void apply(std::map<std::string, NodePtr>& entries, const std::string& name,
                    const NodePtr& node) {
    if (node) {
      entries[name] = node;
    } else {
      entries.erase(name);
    }
  }

  Result<void> link(const std::string& path, NodePtr node) {
    const NodePtr folder = find(checkpoint::parent_path(path));
    if (!folder) return make_error(Errc::kIo, "no folder for {}", path);
    change(*folder, {{base_name(path), std::move(node)}});
    return {};
  }
  Result<void> unlink(const std::string& path) {
    if (auto failed = step(path); !failed) return failed;
    change(*find(checkpoint::parent_path(path)), {{base_name(path), nullptr}});
    return {};
  }

  // A node may have several names: today's, the durable one, those of pending changes.
  using Copies = std::map<const Node*, NodePtr>;
  static NodePtr copy(const NodePtr& node, Copies& copies) {
    if (!node) return nullptr;
    NodePtr& result = copies[node.get()];
    if (result) return result;
    result = std::make_shared<Node>(node->kind);
    const NodePtr made = result;
    made->data = node->data;
    made->durable_data = node->durable_data;
    for (const auto& [name, child] : node->entries) made->entries[name] = copy(child, copies);
    for (const auto& [name, child] : node->durable_entries)
      made->durable_entries[name] = copy(child, copies);
    for (const NameChange& names : node->pending) {
      NameChange& change = made->pending.emplace_back();
      for (const auto& [name, child] : names) change.emplace_back(name, copy(child, copies));
    }
    return made;
  }

  static NodePtr survivor(const Node& node, std::mt19937_64& dice) {
    auto result = std::make_shared<Node>(node.kind);
    result->data = result->durable_data = surviving_data(node, dice);
    std::map<std::string, NodePtr> entries = node.durable_entries;
    for (const NameChange& names : node.pending) {
      if (dice() % 2 == 0) continue;
      for (const auto& [name, child] : names) apply(entries, name, child);
    }
    for (const auto& [name, child] : entries) result->entries[name] = survivor(*child, dice);
    result->durable_entries = result->entries;
    return result;
  }

  static std::string surviving_data(const Node& node, std::mt19937_64& dice) {
    if (node.data == node.durable_data) return node.data;
    std::string torn = node.data;
    switch (dice() % 4) {
      case 0:
        return node.durable_data;
      case 1:
        return node.data;
      case 2:
        torn.resize(dice() % (torn.size() + 1));
        return torn;
      default: {
        const std::size_t begin = torn.empty() ? 0 : dice() % torn.size();
        const std::size_t count = std::min<std::size_t>(torn.size() - begin, 1 + dice() % 64);
        return torn.replace(begin, count, count, '\0');
      }
    }
  }

  NodePtr root_;
  std::size_t operations_ = 0;
  std::size_t fault_at_ = std::numeric_limits<std::size_t>::max();
  Fault fault_ = Fault::kNone;
  std::size_t write_limit_ = std::numeric_limits<std::size_t>::max();
  std::string unreadable_;
  Unfetchable unfetchable_;
};

}  // namespace ddp::test

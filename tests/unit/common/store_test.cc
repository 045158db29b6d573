// The stores that need no server, and how a file store handles a damaged file.

#include "common/store/file_store.h"
#include "common/store/tcp_store.h"
#include "tests/support/hash_store.h"
#include "tests/support/listener.h"
#include "tests/support/store_contract.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {
namespace {

StoreMaker hash_stores() {
  return [store = std::make_shared<HashStore>()] { return std::make_unique<HashStore>(*store); };
}

StoreMaker file_stores() {
  return [dir = std::make_shared<TempDir>()] {
    return store::open_file_store(dir->path() / "store").value();
  };
}

INSTANTIATE_TEST_SUITE_P(Local, StoreContract,
                         testing::Values(StoreCase{"HashStore", hash_stores},
                                         StoreCase{"FileStore", file_stores}),
                         [](const auto& given) { return given.param.name; });

TEST(FileStoreTest, ReplaysWhatAnotherRunLeft) {
  const TempDir dir;
  const std::string path = dir.path() / "store";
  {
    auto store = store::open_file_store(path).value();
    ASSERT_TRUE(store->set("kept", "1"));
    ASSERT_TRUE(store->set("gone", "1"));
    ASSERT_TRUE(store->delete_key("gone").value());
    EXPECT_EQ(store->add("kept", 2).value(), 3);
  }
  auto store = store::open_file_store(path).value();
  EXPECT_EQ(store->get("kept", 0ms).value(), "3");
  EXPECT_FALSE(store->check({"gone"}).value());
}

// The file has no name any more, but those who have it open meet in it.
TEST(FileStoreTest, GoesOnAfterItsFileWasRemoved) {
  const TempDir dir;
  const std::string path = dir.path() / "store";
  auto store = store::open_file_store(path).value();
  auto other = store::open_file_store(path).value();
  ASSERT_TRUE(std::filesystem::remove(path));
  ASSERT_TRUE(store->set("k", "v"));
  EXPECT_EQ(other->get("k", 0ms).value(), "v");
  std::thread setter([&] { ASSERT_TRUE(store->set("late", "1")); });
  EXPECT_TRUE(other->wait({"k", "late"}, 20s));
  setter.join();
  EXPECT_FALSE(store::open_file_store(path).value()->check({"k"}).value()) << "a new file";
}

// Longer than the looks with which a wait begins, which take 26 ms.
TEST(FileStoreTest, ALongWaitSeesAChange) {
  const TempDir dir;
  auto store = store::open_file_store(dir.path() / "store").value();
  auto other = store::open_file_store(dir.path() / "store").value();
  EXPECT_EQ(store->get("k", 60ms).error().code, Errc::kTimeout);
  std::thread setter([&] {
    std::this_thread::sleep_for(100ms);  // sleep: the wait is to have become a long one.
    EXPECT_TRUE(other->set("k", "late"));
  });
  EXPECT_EQ(store->get("k", 100s).value(), "late");
  setter.join();
}

// The file is cut at every length a killed writer can leave: nothing but the cut record is lost,
// and the store goes on.
TEST(FileStoreTest, CutsOffARecordWhoseWriterWasKilled) {
  const TempDir dir;
  const std::string path = dir.path() / "store";
  ASSERT_TRUE(store::open_file_store(path).value()->set("first", "1"));
  const std::string one = dir.read("store");
  ASSERT_TRUE(store::open_file_store(path).value()->set("second", "2"));
  const std::string two = dir.read("store");
  for (std::size_t size = 0; size < two.size(); ++size) {
    dir.write("store", two.substr(0, size));
    auto store = store::open_file_store(path).value();
    EXPECT_EQ(store->check({"first"}).value(), size >= one.size()) << size;
    EXPECT_FALSE(store->check({"second"}).value()) << size;
    auto other = store::open_file_store(path).value();
    ASSERT_TRUE(store->set("third", "3"));
    EXPECT_EQ(other->get("third", 0ms).value(), "3") << size;
    EXPECT_EQ(other->check({"first"}).value(), size >= one.size()) << size;
  }
}

TEST(FileStoreTest, RefusesAFileOfAnotherKind) {
  const TempDir dir;
  for (const char* const text : {"x", "notes that somebody wrote\n"}) {
    const auto store = store::open_file_store(dir.write("notes", text));
    ASSERT_FALSE(store);
    EXPECT_EQ(store.error().code, Errc::kCorrupt);
    EXPECT_EQ(dir.read("notes"), text);
  }
  EXPECT_EQ(store::open_file_store(dir.path() / "no" / "such").error().code, Errc::kIo);
}

TEST(TcpStoreTest, SaysWhyNobodyAnswered) {
  const auto refused = connect_tcp_store("127.0.0.1", free_port(), 50ms);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kTimeout);
  EXPECT_NE(refused.error().message.find("Connection refused"), std::string::npos)
      << refused.error().message;
  const auto unresolved = connect_tcp_store("no-such-host.invalid", 1, 50ms);
  ASSERT_FALSE(unresolved);
  EXPECT_NE(unresolved.error().message.find("no-such-host.invalid"), std::string::npos);
}

TEST(TcpStoreTest, GivesUpOnAServerThatAcceptsAndIsSilent) {
  const ListeningSocket silent;
  const auto store = connect_tcp_store("127.0.0.1", silent.port(), 100ms);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Errc::kTimeout);
}

}  // namespace
}  // namespace ddp::test

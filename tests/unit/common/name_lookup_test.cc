#include "common/net/name_lookup.h"

#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/event_loop.h"

namespace ddp::net {
namespace {

using test::run_until;

class NameLookupTest : public testing::Test {
 protected:
  asio::io_context io_;
};

TEST_F(NameLookupTest, FindsAddressesOrSaysWhyNot) {
  NameLookup lookup(io_);
  std::optional<Result<Endpoints>> found;
  const auto take = [&](Result<Endpoints> endpoints) { found.emplace(std::move(endpoints)); };
  lookup.ask("localhost", 7, take);
  EXPECT_FALSE(found) << "called back from inside ask()";
  ASSERT_TRUE(run_until(io_, [&] { return found.has_value(); }));
  ASSERT_TRUE(*found) << found->error().message;
  ASSERT_FALSE((*found)->empty());
  EXPECT_TRUE((*found)->front().address().is_loopback());
  EXPECT_EQ((*found)->front().port(), 7);

  found.reset();
  lookup.ask("an..empty.label", 7, take);
  ASSERT_TRUE(run_until(io_, [&] { return found.has_value(); }));
  ASSERT_FALSE(*found);
  EXPECT_EQ(found->error().code, Errc::kNotFound);
  EXPECT_NE(found->error().message.find("'an..empty.label' does not resolve"), std::string::npos)
      << found->error().message;
}

// As when the program ends while a name server does not answer.
TEST_F(NameLookupTest, ThatIsCancelledIsNotToldAndHoldsNobodyUp) {
  bool is_told = false;
  {
    NameLookup lookup(io_);
    lookup.ask("localhost", 7, [&](const Result<Endpoints>&) { is_told = true; });
    lookup.cancel();
    lookup.ask("localhost", 7, [&](const Result<Endpoints>&) { is_told = true; });
  }
  io_.restart();
  io_.run();  // Nothing is left to wait for.
  EXPECT_FALSE(is_told);
}

}  // namespace
}  // namespace ddp::net

#include "common/base/template_text.h"

#include <gtest/gtest.h>

namespace ddp {
namespace {

// What a worker's sys.argv had under torchrun 2.14.1 with local rank 1.
TEST(TemplateText, SubstitutesAsTorchrunDoes) {
  const struct {
    const char* text;
    const char* result;
  } cases[] = {
      {"${local_rank}", "1"},
      {"$local_rank", "1"},
      {"a$$b", "a$b"},
      {"$$local_rank", "$local_rank"},
      {"${other}", "${other}"},
      {"$LOCAL_RANK", "$LOCAL_RANK"},
      {"$", "$"},
      {"${local_rank", "${local_rank"},
      {"$local_rankx", "$local_rankx"},
      {"${local_rank}x", "1x"},
      {"$local_rank-", "1-"},
      {"$9", "$9"},
      {"${Local_Rank}", "${Local_Rank}"},
      {"é$local_ranké", "é1é"},
      {"$$$local_rank", "$1"},
      {"${}", "${}"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(safe_substitute(c.text, "local_rank", "1"), c.result) << c.text;
}

TEST(TemplateText, PartsAreTextsAndNames) {
  const auto parts = template_parts("a ${b}$$");
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].text, "a ");
  EXPECT_EQ(parts[0].name, "");
  EXPECT_EQ(parts[1].text, "${b}");
  EXPECT_EQ(parts[1].name, "b");
  EXPECT_EQ(parts[2].text, "$");
  EXPECT_TRUE(template_parts("").empty());
}

}  // namespace
}  // namespace ddp

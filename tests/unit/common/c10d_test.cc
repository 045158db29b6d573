// The parser of c10d requests against every operation, every cut, and hostile bytes.
#include "common/wire/c10d.h"

#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace ddp::wire::c10d {
namespace {

constexpr std::string_view kValidate("\x00\xCE\xF7\x85\x3C", 5);

// A request whose views stay valid: it owns nothing, its texts are literals.
struct Sample {
  Dialect dialect;
  Request request;
};

Request sample_request(Op op) {
  Request request;
  request.op = op;
  request.key = "/key";
  request.value = std::string_view("va\0ue", 5);
  request.expected = "expected";
  request.number = -3;
  request.keys = {"/a", "", "/long key"};
  if (op == Op::kMultiSet) request.values = {"1", "", "three"};
  if (op == Op::kValidate) request.number = kValidateMagic;
  if (op == Op::kPing) request.number = 12'345;
  return request;
}

std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (std::size_t i = 0; i < kOpCount; ++i) {
    for (const Dialect dialect : {Dialect::kNewest, Dialect::kInterim, Dialect::kLegacy}) {
      const Op op = static_cast<Op>(i);
      if (has_op(dialect, op) && op != Op::kValidate) out.push_back({dialect, sample_request(op)});
    }
  }
  return out;
}

std::string bytes_of(const Sample& sample) {
  std::string bytes;
  if (sample.dialect == Dialect::kNewest) bytes += kValidate;
  encode_request(sample.request, sample.dialect, bytes);
  return bytes;
}

// For what the sample's connection sends first.
Dialect old_dialect(const Sample& sample) {
  return sample.dialect == Dialect::kInterim ? Dialect::kInterim : Dialect::kLegacy;
}

std::string encoded(const Request& request, Dialect dialect) {
  std::string bytes;
  encode_request(request, dialect, bytes);
  return bytes;
}

// Skips the VALIDATE of the newest dialect.
const Request* next_after_greeting(RequestParser& parser) {
  const Request* request = parser.next().value();
  if (request != nullptr && request->op == Op::kValidate) request = parser.next().value();
  return request;
}

TEST(C10dTest, OpcodesAreThoseOfPyTorch) {
  const std::vector<std::pair<Op, int>> newest = {
      {Op::kValidate, 0},    {Op::kSet, 1},       {Op::kCompareSet, 2}, {Op::kGet, 3},
      {Op::kAdd, 4},         {Op::kCheck, 5},     {Op::kWait, 6},       {Op::kNumKeys, 7},
      {Op::kDeleteKey, 8},   {Op::kAppend, 9},    {Op::kMultiGet, 10},  {Op::kMultiSet, 11},
      {Op::kCancelWait, 12}, {Op::kPing, 13},     {Op::kQueuePush, 14}, {Op::kQueuePop, 15},
      {Op::kQueueLen, 16},   {Op::kListKeys, 17}, {Op::kBarrier, 18}};
  for (const auto& [op, code] : newest) {
    EXPECT_EQ(encoded(sample_request(op), Dialect::kNewest)[0], code) << op_name(op);
  }
  const std::vector<std::pair<Op, int>> legacy = {
      {Op::kSet, 0},  {Op::kCompareSet, 1}, {Op::kGet, 2},      {Op::kAdd, 3},      {Op::kCheck, 4},
      {Op::kWait, 5}, {Op::kNumKeys, 6},    {Op::kWatchKey, 7}, {Op::kDeleteKey, 8}};
  for (const auto& [op, code] : legacy) {
    EXPECT_EQ(encoded(sample_request(op), Dialect::kLegacy)[0], code) << op_name(op);
  }
  const std::vector<std::pair<Op, int>> interim = {
      {Op::kSet, 0},    {Op::kCompareSet, 1}, {Op::kGet, 2},       {Op::kAdd, 3},
      {Op::kCheck, 4},  {Op::kWait, 5},       {Op::kNumKeys, 6},   {Op::kDeleteKey, 7},
      {Op::kAppend, 8}, {Op::kMultiGet, 9},   {Op::kMultiSet, 10}, {Op::kCancelWait, 11}};
  for (const auto& [op, code] : interim) {
    EXPECT_EQ(encoded(sample_request(op), Dialect::kInterim)[0], code) << op_name(op);
  }
  for (std::size_t i = 0; i < kOpCount; ++i) {
    const auto listed = [op = static_cast<Op>(i)](const auto& table) {
      return std::any_of(table.begin(), table.end(), [&](auto& one) { return one.first == op; });
    };
    EXPECT_EQ(has_op(Dialect::kNewest, static_cast<Op>(i)), listed(newest)) << i;
    EXPECT_EQ(has_op(Dialect::kInterim, static_cast<Op>(i)), listed(interim)) << i;
    EXPECT_EQ(has_op(Dialect::kLegacy, static_cast<Op>(i)), listed(legacy)) << i;
  }
  EXPECT_EQ(encoded(sample_request(Op::kValidate), Dialect::kNewest), kValidate);
}

TEST(C10dTest, EveryRequestComesBackAsItWasHoweverItIsCut) {
  for (const Sample& sample : samples()) {
    const std::string bytes = bytes_of(sample);
    for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
      RequestParser parser({}, old_dialect(sample));
      const Request* request = nullptr;
      for (std::size_t at = 0; at < bytes.size(); at += piece) {
        ASSERT_EQ(request, nullptr) << "whole before its last byte";
        parser.append(std::string_view(bytes).substr(at, piece));
        request = next_after_greeting(parser);
      }
      ASSERT_NE(request, nullptr) << op_name(sample.request.op) << " in pieces of " << piece;
      EXPECT_EQ(request->op, sample.request.op);
      EXPECT_EQ(encoded(*request, sample.dialect), encoded(sample.request, sample.dialect));
      EXPECT_EQ(parser.dialect(), sample.dialect);
      EXPECT_EQ(parser.next().value(), nullptr);
      EXPECT_EQ(parser.buffered_bytes(), 0u);
    }
  }
}

TEST(C10dTest, EveryTruncationIsIncompleteAndNeverWrong) {
  for (const Sample& sample : samples()) {
    const std::string bytes = bytes_of(sample);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      RequestParser parser({}, old_dialect(sample));
      parser.append(std::string_view(bytes).substr(0, size));
      EXPECT_EQ(next_after_greeting(parser), nullptr) << op_name(sample.request.op) << " " << size;
    }
  }
}

TEST(C10dTest, RequestsSentTogetherComeOutInOrder) {
  std::string bytes(kValidate);
  std::vector<Op> sent;
  for (const Sample& sample : samples()) {
    if (sample.dialect != Dialect::kNewest) continue;
    encode_request(sample.request, sample.dialect, bytes);
    sent.push_back(sample.request.op);
  }
  RequestParser parser;
  parser.append(bytes);
  EXPECT_EQ(parser.next().value()->op, Op::kValidate);
  for (const Op op : sent) EXPECT_EQ(parser.next().value()->op, op);
  EXPECT_EQ(parser.next().value(), nullptr);
}

TEST(C10dTest, ALegacySetWhoseLengthBeginsLikeTheMagicIsASet) {
  // 0xCE in the low byte of the key's length: 206 bytes.
  Request request;
  request.op = Op::kSet;
  const std::string key(0xCE, 'k');
  request.key = key;
  RequestParser parser;
  for (const char byte : encoded(request, Dialect::kLegacy)) {
    ASSERT_EQ(parser.next().value(), nullptr);
    parser.append({&byte, 1});
  }
  const Request* parsed = parser.next().value();
  ASSERT_NE(parsed, nullptr);
  EXPECT_EQ(parser.dialect(), Dialect::kLegacy);
  EXPECT_EQ(parsed->key, key);
}

TEST(C10dTest, OnlyAnOldConnectionCanTurnOutToBeInterim) {
  for (const Op op : {Op::kMultiGet, Op::kMultiSet, Op::kCancelWait}) {
    RequestParser parser;
    parser.append(encoded(sample_request(Op::kNumKeys), Dialect::kLegacy));
    ASSERT_EQ(parser.next().value()->op, Op::kNumKeys);
    EXPECT_EQ(parser.dialect(), Dialect::kLegacy);
    parser.append(encoded(sample_request(op), Dialect::kInterim));
    parser.append(encoded(sample_request(Op::kDeleteKey), Dialect::kInterim));
    ASSERT_EQ(parser.next().value()->op, op);
    EXPECT_EQ(parser.dialect(), Dialect::kInterim);
    ASSERT_EQ(parser.next().value()->op, Op::kDeleteKey);
    EXPECT_EQ(parser.dialect(), Dialect::kInterim);
  }
  RequestParser newest;
  newest.append(std::string(kValidate) + encoded(sample_request(Op::kAppend), Dialect::kNewest));
  EXPECT_EQ(newest.next().value()->op, Op::kValidate);
  EXPECT_EQ(newest.next().value()->op, Op::kAppend) << "9 is not 2.1's MULTI_GET here";
  EXPECT_EQ(newest.dialect(), Dialect::kNewest);
}

TEST(C10dTest, ARequestHasNothingOfTheOneBefore) {
  RequestParser parser;
  parser.append(encoded(sample_request(Op::kCompareSet), Dialect::kLegacy));
  ASSERT_EQ(parser.next().value()->op, Op::kCompareSet);
  parser.append(encoded(sample_request(Op::kNumKeys), Dialect::kLegacy));
  const Request* const request = parser.next().value();
  ASSERT_EQ(request->op, Op::kNumKeys);
  for (const std::string_view text : {request->key, request->value, request->expected}) {
    EXPECT_EQ(text.data(), nullptr) << "a view of bytes that are gone";
  }
}

TEST(C10dTest, AnIdleParserKeepsNoMemoryOfALargeRequest) {
  RequestParser parser;
  Request request;
  request.op = Op::kWait;
  request.keys.assign(10'000, "key");
  parser.append(encoded(request, Dialect::kLegacy));
  EXPECT_EQ(parser.next().value()->keys.size(), 10'000u);
  EXPECT_GT(parser.memory_bytes(), 100'000u);
  EXPECT_EQ(parser.next().value(), nullptr);
  EXPECT_LT(parser.memory_bytes(), 2'000u);
}

// Feeds bytes to a parser until it refuses or nothing is left.
Result<const Request*> feed(std::string_view bytes, const Limits& limits = {}) {
  RequestParser parser(limits);
  parser.append(bytes);
  while (true) {
    Result<const Request*> request = parser.next();
    if (!request || *request == nullptr) {
      if (!request) {
        EXPECT_FALSE(parser.next()) << "a broken stream does not mend";
      }
      return request;
    }
  }
}

TEST(C10dTest, RefusesUnknownOpcodesAndASecondValidate) {
  for (int code = 12; code < 256; ++code) {
    EXPECT_FALSE(feed(std::string(1, static_cast<char>(code)))) << code;
  }
  for (int code = 19; code < 256; ++code) {
    EXPECT_FALSE(feed(std::string(kValidate) + static_cast<char>(code))) << code;
  }
  EXPECT_FALSE(feed(std::string(kValidate) + std::string(kValidate)));
}

std::string with_u64(std::string bytes, std::uint64_t value) {
  put_i64(bytes, static_cast<std::int64_t>(value));
  return bytes;
}

TEST(C10dTest, RefusesALengthBeyondItsLimitBeforeAnyByteOfIt) {
  const Limits limits;
  const std::uint64_t huge[] = {1ull << 40, std::numeric_limits<std::uint64_t>::max(),
                                std::numeric_limits<std::uint64_t>::max() - 8};
  for (const std::uint64_t length : huge) {
    EXPECT_FALSE(feed(with_u64("\x02", length)));                           // key
    EXPECT_FALSE(feed(with_u64(with_u64("\x01", 0), length)));              // value
    EXPECT_FALSE(feed(with_u64("\x05", length)));                           // count
    EXPECT_FALSE(feed(with_u64(std::string(kValidate) + "\x0b", length)));  // count of pairs
    EXPECT_FALSE(feed(with_u64(with_u64("\x05", 1), length)));              // key of a list
  }
  EXPECT_TRUE(feed(with_u64("\x02", limits.key_bytes)));
  EXPECT_FALSE(feed(with_u64("\x02", limits.key_bytes + 1)));
  EXPECT_TRUE(feed(with_u64(with_u64("\x01", 0), limits.value_bytes)));
  EXPECT_FALSE(feed(with_u64(with_u64("\x01", 0), limits.value_bytes + 1)));
  EXPECT_TRUE(feed(with_u64("\x05", limits.count)));
  EXPECT_FALSE(feed(with_u64("\x05", limits.count + 1)));
}

TEST(C10dTest, RefusesAListWhoseElementsAddUpBeyondTheLimit) {
  Limits limits;
  limits.request_bytes = 1'000;
  Request request;
  request.op = Op::kWait;
  const std::string key(90, 'k');
  request.keys.assign(10, key);
  EXPECT_TRUE(feed(encoded(request, Dialect::kLegacy), limits));
  request.keys.assign(11, key);
  EXPECT_FALSE(feed(encoded(request, Dialect::kLegacy), limits));
}

TEST(C10dTest, FlippedBytesNeverBreakTheParser) {
  constexpr unsigned kSeed = 20'260'101;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const std::vector<Sample> all = samples();
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes;
    for (int i = 0; i < 3; ++i) bytes += bytes_of(all[random() % all.size()]);
    for (int i = 0; i < 3; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RequestParser parser({}, round % 2 == 0 ? Dialect::kLegacy : Dialect::kInterim);
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t piece = 1 + random() % 40;
      parser.append(std::string_view(bytes).substr(at, piece));
      at += piece;
      while (true) {
        const Result<const Request*> request = parser.next();
        if (!request || *request == nullptr) break;
        // Reading all of it lets the address sanitizer judge the views.
        EXPECT_FALSE(encoded(**request, *parser.dialect()).empty());
      }
    }
  }
}

}  // namespace
}  // namespace ddp::wire::c10d

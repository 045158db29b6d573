#include "common/wire/task_messages.h"

#include <charconv>
#include <cstddef>
#include <utility>

namespace ddp::wire {
namespace {

// The parts of a payload: a letter, numbers with commas between them, a newline, strings that end
// with NUL.
struct Fields {
  std::vector<int> numbers;
  std::vector<std::string> strings;
};

std::string write(char kind, const Fields& fields) {
  std::string payload(1, kind);
  for (std::size_t i = 0; i < fields.numbers.size(); ++i)
    payload += fmt::format("{}{}", i > 0 ? "," : "", fields.numbers[i]);
  payload += '\n';
  for (const std::string& text : fields.strings) payload.append(text).push_back('\0');
  return payload;
}

Error unreadable(const char* what) {
  return make_error(Errc::kProtocol, "a message between the tasks of a node: {}", what);
}

Result<Fields> read(std::string_view payload) {
  Fields fields;
  const char* at = payload.data() + 1;
  const char* end = payload.data() + payload.size();
  while (at < end && *at != '\n') {
    int number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return unreadable("a number is not valid");
    fields.numbers.push_back(number);
    at = rest;
    if (at < end && *at == ',') ++at;
  }
  if (at == end) return unreadable("the end of its numbers is missing");
  for (++at; at < end;) {
    const std::string_view rest(at, static_cast<std::size_t>(end - at));
    const std::size_t size = rest.find('\0');
    if (size == std::string_view::npos) return unreadable("a string does not end");
    fields.strings.emplace_back(rest.substr(0, size));
    at += size + 1;
  }
  return fields;
}

struct Encoder {
  std::string operator()(const TaskHello& m) const {
    Fields fields{{m.local_rank}, m.environment};
    fields.numbers.insert(fields.numbers.end(), m.cpus.begin(), m.cpus.end());
    return write('h', fields);
  }
  std::string operator()(const WorkerStarted& m) const { return write('s', {{m.pid}, {}}); }
  std::string operator()(const WorkerNotStarted& m) const {
    return write('n', {{m.status}, {m.why}});
  }
  std::string operator()(const WorkerEnded& m) const {
    return write('e', {{m.pid, m.exit_code, m.signal, m.core_dumped ? 1 : 0}, {}});
  }
  std::string operator()(const TaskCleared& m) const {
    return write('c', {{m.number, m.complete ? 1 : 0}, {}});
  }
  std::string operator()(const StartWorker& m) const {
    Fields fields{{static_cast<int>(m.command.size())}, m.command};
    fields.strings.insert(fields.strings.end(), m.environment.begin(), m.environment.end());
    return write('S', fields);
  }
  std::string operator()(const TakeStatus& m) const { return write('T', {{m.pid}, {}}); }
  std::string operator()(const ClearTask& m) const {
    Fields fields{{m.number, m.limit_ms}, {}};
    fields.numbers.insert(fields.numbers.end(), m.keep.begin(), m.keep.end());
    return write('C', fields);
  }
  std::string operator()(const Dismiss& m) const { return write('D', {{m.exit_code}, {}}); }
};

// At least `numbers` numbers and `strings` strings.
bool has(const Fields& fields, std::size_t numbers, std::size_t strings = 0) {
  return fields.numbers.size() >= numbers && fields.strings.size() >= strings;
}

template <typename T>
std::vector<T> tail(const std::vector<T>& from, std::size_t first) {
  return {from.begin() + static_cast<std::ptrdiff_t>(first), from.end()};
}

}  // namespace

std::string encode(const TaskMessage& message) { return std::visit(Encoder(), message); }

Result<TaskMessage> decode_task_message(std::string_view payload) {
  if (payload.empty()) return unreadable("it is empty");
  auto fields = read(payload);
  if (!fields) return fields.error();
  const auto& [n, strings] = *fields;
  switch (payload.front()) {
    case 'h':
      if (has(*fields, 1)) return TaskMessage(TaskHello{n[0], tail(n, 1), strings});
      break;
    case 's':
      if (has(*fields, 1)) return TaskMessage(WorkerStarted{n[0]});
      break;
    case 'n':
      if (has(*fields, 1, 1)) return TaskMessage(WorkerNotStarted{n[0], strings[0]});
      break;
    case 'e':
      if (has(*fields, 4)) return TaskMessage(WorkerEnded{n[0], n[1], n[2], n[3] != 0});
      break;
    case 'c':
      if (has(*fields, 2)) return TaskMessage(TaskCleared{n[0], n[1] != 0});
      break;
    case 'S':
      if (has(*fields, 1) && n[0] > 0 && has(*fields, 1, static_cast<std::size_t>(n[0]))) {
        const auto count = static_cast<std::size_t>(n[0]);
        return TaskMessage(
            StartWorker{{strings.begin(), strings.begin() + static_cast<std::ptrdiff_t>(count)},
                        tail(strings, count)});
      }
      break;
    case 'T':
      if (has(*fields, 1)) return TaskMessage(TakeStatus{n[0]});
      break;
    case 'C':
      if (has(*fields, 2)) return TaskMessage(ClearTask{n[0], n[1], tail(n, 2)});
      break;
    case 'D':
      if (has(*fields, 1)) return TaskMessage(Dismiss{n[0]});
      break;
    default:
      return unreadable("its kind is unknown");
  }
  return unreadable("it is incomplete");
}

}  // namespace ddp::wire

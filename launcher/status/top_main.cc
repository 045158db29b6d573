// ddp-top, which `ddp-run top` becomes: draws top_screen with curses, once a second.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <langinfo.h>
#include <ncursesw/curses.h>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/base/json_text.h"
#include "common/config/rdzv_token.h"
#include "launcher/page/page_document.h"
#include "launcher/status/ask_daemon.h"
#include "launcher/status/top_screen.h"

namespace ddp::status {
namespace {

using nlohmann::json;

constexpr Duration kInterval{1'000};
// Keys wait while the daemon is asked.
constexpr Duration kLimit{2'000};
constexpr int kEscape = 27;
constexpr const char* kTokenFlag = "--rdzv-token-file";
constexpr const char* kHelp =
    "ddp-run top HOST[:PORT] [--rdzv-token-file FILE]\n\nShows a running job in the terminal, once "
    "a second: curves, ranks, what they wait for, rounds, checkpoints. HOST:PORT\nis the "
    "rendezvous' endpoint (default port 29400). A browser shows the same at "
    "http://HOST:PORT/.\n\n  --rdzv-token-file FILE  the job's token, to read what ranks have "
    "written; or DDP_RDZV_TOKEN\n\nKeys: arrows choose a rank, Enter shows its last lines, PageUp "
    "and PageDown scroll, j the next job, q ends.\n";
constexpr const char* kUsage = "write ddp-run top HOST[:PORT] [--rdzv-token-file FILE]";

class Top {
 public:
  explicit Top(Daemon daemon) : daemon_(std::move(daemon)) {}

  // The first answer, before the screen is taken.
  Result<void> begin() { return update(); }
  void run();

 private:
  Result<void> update();
  void draw();
  void draw_job();
  void draw_lines(const std::vector<Line>& lines);
  void draw_text(const std::string& title, const std::string& text);
  void draw_footer() const;
  bool take_key(int key);
  std::string ask_output() const;
  void update_output();
  const json* job() const;
  void choose_job();
  void choose_next_job();

  Daemon daemon_;
  json jobs_ = json::object();
  std::string lost_;    // Why the last question was not answered.
  std::string chosen_;  // The job's id. It stays when other jobs come, and when it is over.
  TopView view_;
  int top_line_ = 0;  // The first line on the screen.
  bool shows_output_ = false;
  std::string output_;  // Of the marked rank, when it was asked for.
};

const json* Top::job() const {
  const auto found = jobs_.find(chosen_);
  return found == jobs_.end() ? nullptr : &*found;
}

// One that runs, or the first, if none is chosen or the chosen one is gone.
void Top::choose_job() {
  if (jobs_.empty() || jobs_.contains(chosen_)) return;
  const auto running =
      std::ranges::find_if(jobs_, [](const json& job) { return job.at("state") != "finished"; });
  chosen_ = (running == jobs_.end() ? jobs_.begin() : running).key();
}

void Top::choose_next_job() {
  if (jobs_.empty()) return;
  auto next = jobs_.find(chosen_);
  if (next != jobs_.end()) ++next;
  chosen_ = (next == jobs_.end() ? jobs_.begin() : next).key();
}

Result<void> Top::update() {
  const auto status = ask_page(daemon_, "/status");
  if (!status) return status.error();
  const auto history = ask_page(daemon_, "/history");
  if (!history) return history.error();
  try {
    jobs_ = page::page_document(parse_json(*status).at("jobs"), parse_json(*history).at("jobs"))
                .at("jobs");
    choose_job();
  } catch (const json::exception& error) {
    return exit_error(kExitPortInUse, "what answers there is not a rendezvous: {}", error.what());
  }
  return {};
}

// curses calls a colour by the number of a pair: that of its style.
constexpr std::array<std::pair<Style, short>, 6> kColours{{{Style::kGood, COLOR_GREEN},
                                                           {Style::kBehind, COLOR_YELLOW},
                                                           {Style::kLate, COLOR_YELLOW},
                                                           {Style::kBad, COLOR_RED},
                                                           {Style::kIdle, COLOR_CYAN},
                                                           {Style::kEnding, COLOR_MAGENTA}}};

short pair_of(Style style) {
  const bool has_colour =
      std::ranges::any_of(kColours, [style](const auto& each) { return each.first == style; });
  return static_cast<short>(has_colour ? static_cast<int>(style) : 0);
}

attr_t attributes_of(const Span& span) {
  attr_t attributes = COLOR_PAIR(pair_of(span.style));
  if (span.style == Style::kBold) attributes |= A_BOLD;
  if (span.style == Style::kSoft) attributes |= A_DIM;
  if (span.marked) attributes |= A_REVERSE;
  return attributes;
}

void begin_colours() {
  if (!has_colors()) return;
  start_color();
  use_default_colors();
  for (const auto& [style, colour] : kColours) init_pair(pair_of(style), colour, -1);
}

void Top::draw_lines(const std::vector<Line>& lines) {
  const int count = static_cast<int>(lines.size());
  top_line_ = std::clamp(top_line_, 0, std::max(count - (LINES - 1), 0));
  for (int row = 0; row < LINES - 1 && top_line_ + row < count; ++row) {
    move(row, 0);
    for (const Span& span : lines[static_cast<std::size_t>(top_line_ + row)]) {
      attrset(attributes_of(span));
      addstr(span.text.c_str());
    }
    attrset(A_NORMAL);
  }
}

// The end of a text that may be long.
void Top::draw_text(const std::string& title, const std::string& text) {
  std::vector<Line> lines = wrapped(text, std::max(COLS - 1, 1));
  lines.insert(lines.begin(), {{title, Style::kBold}});
  const int skipped = std::max(static_cast<int>(lines.size()) - (LINES - 1), 0);
  lines.erase(lines.begin() + 1,
              lines.begin() + 1 + std::min(skipped, static_cast<int>(lines.size()) - 1));
  top_line_ = 0;
  draw_lines(lines);
}

// The last lines of the marked rank, or why there are none.
std::string Top::ask_output() const {
  const std::vector<Cell> cells = cells_of(*job());
  if (view_.marked >= cells.size() || cells[view_.marked].rank < 0) return "no rank is marked";
  const std::string id = query_value(job()->at("job_id").get<std::string>());
  auto asked = ask(daemon_, fmt::format("/output?job={}&rank={}", id, cells[view_.marked].rank));
  if (!asked) return asked.error().message;
  const auto page = body_of(*asked);
  if (!page) return page.error().message;
  if (asked->status != 200) return *page;  // Why there is none.
  const json answer = parse_json_or_discard(*page);
  if (!answer.is_object()) return "the answer is not readable";
  const std::string text = answer.value("out", "") + answer.value("err", "");
  return text.empty() ? "It has written nothing yet." : text;
}

void Top::update_output() {
  if (!shows_output_ || !lost_.empty()) return;
  try {
    output_ = ask_output();
  } catch (const json::exception& error) {
    output_ = error.what();
  }
}

// What the daemon says may be anything.
void Top::draw() {
  erase();
  try {
    draw_job();
  } catch (const std::exception& error) {
    lost_ = error.what();
  }
  draw_footer();
  refresh();
}

void Top::draw_job() {
  view_.width = std::max(COLS - 1, 20);
  if (job() == nullptr) {
    mvaddstr(0, 0, "no job has joined yet");
  } else if (shows_output_) {
    const std::vector<Cell> cells = cells_of(*job());
    const int rank = view_.marked < cells.size() ? cells[view_.marked].rank : -1;
    draw_text(fmt::format("rank {}: last lines", rank), output_);
  } else {
    const std::size_t cells = cells_of(*job()).size();
    view_.marked = std::min(view_.marked, cells == 0 ? 0 : cells - 1);
    draw_lines(top_screen(*job(), view_));
  }
}

void Top::draw_footer() const {
  const std::string more =
      jobs_.size() > 1
          ? fmt::format(" · job {} of {}: j", std::distance(jobs_.begin(), jobs_.find(chosen_)) + 1,
                        jobs_.size())
          : "";
  const std::string keys = shows_output_
                               ? " Escape: back · q: end"
                               : " arrows: rank · Enter: its output · PageUp, PageDown · q: end";
  const std::string text = lost_.empty() ? keys + more : " no answer; trying again · q: end";
  attron(A_REVERSE);
  mvaddnstr(LINES - 1, 0, fmt::format("{:<{}}", text, std::max(COLS - 1, 1)).c_str(), -1);
  attroff(A_REVERSE);
}

// False: to end.
bool Top::take_key(int key) {
  const int columns = std::max(view_.width / 6, 1);
  const auto step = [this](int by) {
    const int count = job() != nullptr ? static_cast<int>(cells_of(*job()).size()) : 0;
    view_.marked = static_cast<std::size_t>(
        std::clamp(static_cast<int>(view_.marked) + by, 0, std::max(count - 1, 0)));
  };
  const std::pair shown(shows_output_, view_.marked);
  switch (key) {
    case 'q':
      return false;
    case kEscape:
      shows_output_ = false;
      break;
    case '\n':
    case KEY_ENTER:
      shows_output_ = job() != nullptr;
      break;
    case 'j':
      choose_next_job();
      break;
    case KEY_LEFT:
      step(-1);
      break;
    case KEY_RIGHT:
      step(1);
      break;
    case KEY_UP:
      step(-columns);
      break;
    case KEY_DOWN:
      step(columns);
      break;
    case KEY_NPAGE:
      top_line_ += LINES - 2;
      break;
    case KEY_PPAGE:
      top_line_ -= LINES - 2;
      break;
    default:
      break;
  }
  if (shown != std::pair(shows_output_, view_.marked)) update_output();
  return true;
}

// Gives the terminal back, however this ends.
struct Curses {
  Curses() {
    set_escdelay(25);
    initscr();
    begin_colours();
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
  }
  ~Curses() { endwin(); }
  Curses(const Curses&) = delete;
  Curses& operator=(const Curses&) = delete;
};

void Top::run() {
  view_.blocks = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  const Curses curses;
  TimePoint next = Clock::now() + kInterval;
  while (true) {
    draw();
    const auto left = std::chrono::duration_cast<Duration>(next - Clock::now());
    timeout(static_cast<int>(std::max<Duration::rep>(left.count(), 0)));
    const int key = getch();
    if (key != ERR && !take_key(key)) break;
    if (Clock::now() < next) continue;
    next = Clock::now() + kInterval;
    const auto asked = update();
    lost_ = asked ? "" : asked.error().message;
    update_output();
  }
}

Result<Daemon> parse(const std::vector<std::string>& arguments) {
  std::string where;
  std::optional<std::string> token_file;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word.starts_with(kTokenFlag + std::string("="))) {
      token_file = word.substr(word.find('=') + 1);
    } else if (word == kTokenFlag && i + 1 < arguments.size()) {
      token_file = arguments[++i];
    } else if (word.starts_with('-') || !where.empty()) {
      return exit_error(kExitUsage, "{}: {}", word, kUsage);
    } else {
      where = word;
    }
  }
  if (where.empty()) return exit_error(kExitUsage, "the rendezvous is missing; {}", kUsage);
  auto endpoint = parse_daemon(where);
  if (!endpoint) return endpoint.error();
  auto token = config::find_token(token_file);
  if (!token) return exit_error(kExitInvalidValue, "{}", token.error().message);
  return Daemon{std::move(*endpoint), std::move(*token), kLimit};
}

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto refuse = [](int status, const std::string& why) {
    std::fprintf(stderr, "ddp-run top: %s\n", why.c_str());
    return status;
  };
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::fputs(kHelp, stdout);
    return kExitSuccess;
  }
  auto daemon = parse(arguments);
  if (!daemon) return refuse(exit_code_of(daemon.error()), daemon.error().message);
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0)
    return refuse(kExitUsage, "this is no terminal; ddp-run status prints once, or with --watch");
  std::setlocale(LC_ALL, "");
  Top top(std::move(*daemon));
  if (const auto begun = top.begin(); !begun)
    return refuse(exit_code_of(begun.error()), begun.error().message);
  top.run();
  return kExitSuccess;
}

}  // namespace
}  // namespace ddp::status

int main(int argc, char** argv) { return ddp::status::main(argc, argv); }

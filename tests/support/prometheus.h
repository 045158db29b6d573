#pragma once

#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

// A strict parser of Prometheus' text format, written from its specification. It treats everything
// that a scraper may tolerate as an error.
namespace ddp::test {

struct MetricFamily {
  std::string type;
  std::string help;
  std::map<std::string, double> samples;  // By "{label="value",...}" as written; "" without labels.
};

class PrometheusPage {
 public:
  // Throws std::runtime_error that names the line and the broken rule.
  explicit PrometheusPage(const std::string& text) {
    if (text.empty() || text.back() != '\n') throw std::runtime_error("the last line has no end");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      try {
        take(line);
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(line + ": " + error.what());
      }
    }
    end_family();
  }

  const std::map<std::string, MetricFamily>& families() const { return families_; }
  // The sample's value; throws if there is none.
  double value(const std::string& name, const std::string& labels = "") const {
    const auto family = families_.find(name);
    if (family == families_.end()) throw std::runtime_error("no family " + name);
    const auto sample = family->second.samples.find(labels);
    if (sample == family->second.samples.end()) {
      throw std::runtime_error("no sample " + name + labels);
    }
    return sample->second;
  }

 private:
  enum class Expected { kHelp, kType, kSample, kSampleOrHelp };

  static void check(bool holds, const char* rule) {
    if (!holds) throw std::runtime_error(rule);
  }

  void end_family() {
    check(expected_ == Expected::kSampleOrHelp, "a family has HELP, TYPE and a sample");
  }

  void take(const std::string& line) {
    static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ((?:[^\\\\]|\\\\\\\\|\\\\n)+)");
    static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)");
    std::smatch match;
    if (line.starts_with("# HELP")) {
      if (!families_.empty()) end_family();
      check(std::regex_match(line, match, help), "HELP is a name and a text");
      name_ = match[1];
      check(name_.starts_with("ddp_"), "names begin with ddp_");
      check(!families_.contains(name_), "a family is in one piece");
      families_[name_].help = match[2];
      expected_ = Expected::kType;
    } else if (line.starts_with("# TYPE")) {
      check(expected_ == Expected::kType, "TYPE follows HELP");
      check(std::regex_match(line, match, type), "TYPE is a name and counter or gauge");
      check(match[1] == name_, "TYPE is of the family that HELP began");
      families_[name_].type = match[2];
      check((match[2] == "counter") == name_.ends_with("_total"),
            "counters, and only they, end with _total");
      expected_ = Expected::kSample;
    } else {
      check(expected_ == Expected::kSample || expected_ == Expected::kSampleOrHelp,
            "samples follow TYPE");
      take_sample(line);
      expected_ = Expected::kSampleOrHelp;
    }
  }

  void take_sample(const std::string& line) {
    check(line.starts_with(name_), "a sample has its family's name");
    std::size_t at = name_.size();
    std::string labels;
    if (line[at] == '{') {
      const std::size_t begin = at;
      at = skip_labels(line, at);
      labels = line.substr(begin, at - begin);
    }
    check(line[at] == ' ', "one space before the value");
    const std::string number = line.substr(at + 1);
    char* end = nullptr;
    const double value = std::strtod(number.c_str(), &end);
    check(!number.empty() && *end == '\0' && number.find(' ') == std::string::npos,
          "the value is a number and nothing follows");
    MetricFamily& family = families_[name_];
    check(family.type != "counter" || value >= 0, "counters are not negative");
    check(family.samples.emplace(labels, value).second, "a sample comes once");
  }

  // Parses from the opening brace; returns the position after the closing one.
  static std::size_t skip_labels(const std::string& line, std::size_t at) {
    static const std::regex name("[a-zA-Z_][a-zA-Z0-9_]*");
    std::set<std::string> seen;
    while (line[at] != '}') {
      ++at;  // The brace or a comma.
      const std::size_t equals = line.find("=\"", at);
      check(equals != std::string::npos, "a label is NAME=\"VALUE\"");
      const std::string label = line.substr(at, equals - at);
      check(std::regex_match(label, name), "a label's name has letters, digits and _");
      check(seen.insert(label).second, "a label comes once");
      for (at = equals + 2; line.at(at) != '"'; ++at) {
        if (line[at] != '\\') continue;
        ++at;
        check(line.at(at) == '\\' || line[at] == '"' || line[at] == 'n',
              "escapes are \\\\, \\\", \\n");
      }
      ++at;
      check(line.at(at) == ',' || line[at] == '}', "labels are separated by commas");
    }
    return at + 1;
  }

  std::map<std::string, MetricFamily> families_;
  std::string name_;
  Expected expected_ = Expected::kHelp;
};

}  // namespace ddp::test

// referee: executes a trace file on this machine and prints the digests of what came out.
//
// No Python, no torch: the operators, their executor, SHA-256 and two small parsers. Read this folder and kernels/csrc
// to know what you trust.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <thread>

#include "../csrc/errors.h"
#include "../csrc/library.h"
#include "limits.h"
#include "replay.h"
#include "trace_file.h"

namespace {

constexpr const char* kUsage =
    "usage: referee [options] FILE\n"
    "\n"
    "Execute a trace file (docs/formats/trace.md) and print what came out, one fact a line:\n"
    "  script SHA256                          of the program text that was run\n"
    "  commitment LABEL TYPE SIZE ROOT …      as the run's ledger writes it; then as-expected, or WRONG and what was\n"
    "                                         expected\n"
    "  chunk SLOT BEGIN END HASH NAMES        of one chunk in dispute; then whose claim is right\n"
    "  slot NAME DIGEST                       memory that was written, as it is at the end\n"
    "  trace SIZE ROOT                        over everything that every operator wrote (--trace)\n"
    "\n"
    "  --trace          compute the trace\n"
    "  --outputs        and print its leaves: every tensor of the file, every output of every operator\n"
    "  --call RUN.CALL  print the hash of every 64 KiB chunk that this call writes, as `leaf OPERAND CHUNK HASH`\n"
    "  --json           one JSON object a line\n"
    "  --threads N      default: all processors; any number gives the same bits\n"
    "  --memory GIB     refuse a file that takes more; default 8\n"
    "  --work N         refuse a file that takes more than N times 10^12 multiply-adds; default 100\n"
    "  --version        print the instruction set, the compiler's flags and the operators, and leave\n"
    "\n"
    "Exit status: 0 done, 1 something is not what the file says it must be, 2 could not tell.\n"
    "example: referee --threads 2 step.safetensors\n";

struct Arguments {
  bitwitness::ReplayOptions options;
  bitwitness::Limits limits;
  std::string path;
};

// A whole number from `low` to `high`; anything else ends the program.
int64_t number(const std::string& text, const char* option, int64_t low, int64_t high) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < low || value > high) {
    throw bitwitness::KernelError(std::string(option) + " needs a whole number from " + std::to_string(low) + " to " +
                                  std::to_string(high) + ", not '" + text + "'");
  }
  return value;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  arguments.options.threads = static_cast<int>(std::thread::hardware_concurrency());
  if (arguments.options.threads < 1) arguments.options.threads = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (word == "--trace") {
      arguments.options.trace = true;
    } else if (word == "--outputs") {
      arguments.options.trace = arguments.options.outputs = true;
    } else if (word == "--json") {
      arguments.options.json = true;
    } else if (word == "--threads") {
      arguments.options.threads = static_cast<int>(number(value(), "--threads", 1, 256));
    } else if (word == "--memory") {
      arguments.limits.memory = number(value(), "--memory", 1, 1 << 20) << 30;
    } else if (word == "--work") {
      arguments.limits.work = 1e12 * static_cast<double>(number(value(), "--work", 1, 1000000000));
    } else if (word == "--call") {
      const std::string text = value();
      const size_t dot = text.find('.');
      if (dot == std::string::npos) throw bitwitness::KernelError("--call needs RUN.CALL, for instance 0.17");
      arguments.options.run = number(text.substr(0, dot), "--call", 0, INT32_MAX);
      arguments.options.call = number(text.substr(dot + 1), "--call", 0, INT32_MAX);
    } else if (word.size() > 1 && word[0] == '-') {
      throw bitwitness::KernelError("there is no option " + word + "; see --help");
    } else if (!arguments.path.empty()) {
      throw bitwitness::KernelError("one file at a time");
    } else {
      arguments.path = word;
    }
  }
  arguments.limits.threads = arguments.options.threads;
  if (arguments.path.empty()) throw bitwitness::KernelError("no file given; see --help");
  return arguments;
}

int version() {
  const bitwitness::Library& library = bitwitness::library();
  std::printf("referee of arith/1, %s\n%s\n", library.isa, library.flags);
  for (int i = 0; i < library.operator_count; ++i) {
    std::printf("%s %d\n", library.operators[i]->name, library.operators[i]->version);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return std::fputs(kUsage, stdout) < 0;
  std::string path;
  try {
    if (argc == 2 && std::strcmp(argv[1], "--version") == 0) return version();
    const Arguments arguments = parse(argc, argv);
    path = arguments.path + ": ";
    const bitwitness::TraceFile file(arguments.path, arguments.limits);
    return bitwitness::Replay(file, arguments.options).perform() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "referee: %snot enough memory\n", path.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "referee: %s%s\n", path.c_str(), error.what());
  }
  return 2;
}

#include "limits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "../csrc/errors.h"

namespace bitwitness {
namespace {

constexpr double kGiB = 1 << 30, kTera = 1e12;
constexpr int64_t kPerValue = 512;             // bytes of memory for a value of the JSON
constexpr double kPerLeaf = 1024, kPerChunk = 256;  // bytes of memory for a leaf of the trace, and each chunk of one
constexpr double kPerPair = 1 << 12;           // work for each two buffers or calls of a program
constexpr double kPerRun = 1 << 23, kPerPart = 1 << 20, kPerElement = 128;  // to begin a run; for a tensor, each element

std::string rounded_up(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.0f", std::ceil(value));
  return text;
}

std::string three_digits(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

void Limits::check_memory(double bytes) const {
  if (bytes <= static_cast<double>(memory)) return;
  throw KernelError("it takes " + rounded_up(bytes / kGiB) + " GiB of memory, more than the " +
                    three_digits(static_cast<double>(memory) / kGiB) + " allowed; see --memory");
}

void Limits::check_work(double needed) const {
  if (needed <= work) return;
  throw KernelError("it takes " + rounded_up(needed / kTera) + "*10^12 multiply-adds, more than the " +
                    three_digits(work / kTera) + " allowed; see --work");
}

int64_t memory_of_json(std::string_view text) {
  const auto values = std::count_if(text.begin(), text.end(), [](char c) { return c == ',' || c == '[' || c == '{'; });
  return static_cast<int64_t>(text.size()) + kPerValue * static_cast<int64_t>(values);
}

void check_limits(const TraceFile& file, int64_t held, const Limits& limits) {
  double memory = static_cast<double>(held), work = 0;
  for (const Slot& slot : file.slots) memory += static_cast<double>(slot.bytes());
  limits.check_memory(memory);
  std::vector<Cost> costs;
  for (const TraceProgram& program : file.programs) {
    const double size = static_cast<double>(program.buffers.size() + program.calls.size());
    work += kPerPair * size * size;
    limits.check_work(work);
    costs.push_back(cost_of(program.buffers, program.calls, limits.threads));
    memory += static_cast<double>(costs.back().scratch);
    for (const BufferSpec& buffer : program.buffers) {
      if (buffer.kind != BufferKind::Temp) continue;
      double bytes = static_cast<double>(bytes_of(buffer.dtype));
      for (const int64_t extent : buffer.shape) bytes *= static_cast<double>(extent);
      memory += bytes;
    }
  }
  for (const Action& action : file.actions) {
    if (action.kind == Action::Kind::Run) {
      const Cost& cost = costs[action.program];
      work += kPerRun + cost.work;
      memory += kPerLeaf * static_cast<double>(cost.outputs) + kPerChunk * static_cast<double>(cost.chunks);
    } else if (action.kind == Action::Kind::Commit) {
      for (const CommittedTensor& tensor : file.commitments[action.commitment].tensors) {
        work += kPerPart + kPerElement * static_cast<double>(tensor.elements);
      }
    } else {
      work += kPerPart + kPerElement * static_cast<double>(file.slots[action.slot].elements);
    }
  }
  limits.check_memory(memory);
  limits.check_work(work);
}

}  // namespace bitwitness

#include "executor.h"

#include <algorithm>
#include <chrono>

#include "errors.h"
#include "fp_env.h"
#include "library.h"
#include "thread_pool.h"

namespace bitwitness {
namespace {

constexpr int kMaxThreads = 256;
constexpr int64_t kLine = 64;  // temp buffers begin on cache lines

constexpr int64_t kMostElements = int64_t{1} << 48;

// Sizes come from files as well: one that would overflow is refused, not wrapped.
int64_t elements_of(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(n, extent, &n) || n < 0 || n > kMostElements) {
      throw ShapeError("a shape of more than 2^48 elements, or a negative one");
    }
  }
  return n;
}

bool overlap(const ViewSpec& a, const ViewSpec& b) {
  return a.buffer == b.buffer && a.offset < b.offset + elements_of(b.shape) &&
         b.offset < a.offset + elements_of(a.shape);
}

bool same(const ViewSpec& a, const ViewSpec& b) {
  return a.buffer == b.buffer && a.offset == b.offset && elements_of(a.shape) == elements_of(b.shape);
}

bool may_coincide(const OperandSpec& a, const OperandSpec& b) {
  for (const auto& name : a.may_be) if (name == b.name) return true;
  for (const auto& name : b.may_be) if (name == a.name) return true;
  return false;
}

void check_view(const std::vector<BufferSpec>& buffers, const CallSpec& call, const OperandSpec& spec,
                const ViewSpec& view) {
  const std::string where = call.op + ": operand " + spec.name;
  if (view.buffer < 0 || view.buffer >= static_cast<int>(buffers.size())) throw KernelError(where + " names no buffer");
  const BufferSpec& buffer = buffers[view.buffer];
  if (view.shape.size() > kMaxRank) {
    throw ShapeError(where + " has more than " + std::to_string(kMaxRank) + " dimensions");
  }
  for (const int64_t extent : view.shape) {
    if (extent < 1) throw ShapeError(where + " has a dimension below 1");
  }
  if (view.offset < 0 || view.offset > kMostElements ||
      elements_of(view.shape) > elements_of(buffer.shape) - view.offset) {
    throw ShapeError(where + " reaches beyond buffer " + buffer.name + " of " +
                     std::to_string(elements_of(buffer.shape)) + " elements");
  }
  if (buffer.dtype != spec.dtype) {
    throw ShapeError(where + " must be " + name_of(spec.dtype) + ", but buffer " + buffer.name + " is " +
                     name_of(buffer.dtype));
  }
  if (spec.direction != Direction::In && buffer.kind == BufferKind::Input) {
    throw KernelError(where + " is written, but buffer " + buffer.name + " is an input");
  }
}

Call bound_shapes(const CallSpec& spec) {
  Call call;
  call.op = &find_operator(spec.op.c_str());
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    Operand& operand = call.operands[i];
    operand.rank = static_cast<int>(spec.operands[i].shape.size());
    for (int axis = 0; axis < operand.rank; ++axis) operand.shape[axis] = spec.operands[i].shape[axis];
  }
  for (size_t i = 0; i < spec.attributes.size(); ++i) call.attributes[i] = spec.attributes[i];
  return call;
}

}  // namespace

void check_call_spec(const std::vector<BufferSpec>& buffers, const CallSpec& call) {
  const Signature& signature = signature_of(find_operator(call.op.c_str()));
  if (call.operands.size() != signature.operands.size()) {
    throw KernelError(call.op + " takes " + std::to_string(signature.operands.size()) + " operands, not " +
                      std::to_string(call.operands.size()));
  }
  if (call.attributes.size() != signature.attributes.size()) {
    throw KernelError(call.op + " takes " + std::to_string(signature.attributes.size()) + " attributes, not " +
                      std::to_string(call.attributes.size()));
  }
  for (size_t i = 0; i < call.operands.size(); ++i) {
    check_view(buffers, call, signature.operands[i], call.operands[i]);
  }
  check_call(bound_shapes(call));
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (signature.operands[i].direction == Direction::In) continue;
    for (size_t j = 0; j < call.operands.size(); ++j) {
      const OperandSpec &written = signature.operands[i], &other = signature.operands[j];
      if (i == j || !overlap(call.operands[i], call.operands[j])) continue;
      if (same(call.operands[i], call.operands[j]) && may_coincide(written, other)) continue;
      throw KernelError(call.op + ": operand " + written.name + " is written and overlaps operand " + other.name +
                        "; give it memory of its own");
    }
  }
}

namespace {

// A worker's scratch begins a page after another's, so that no two write to one cache line.
int64_t scratch_step(const Scratch& scratch) { return (scratch.per_worker + 4095) / 4096 * 4096; }

void check_numbered(const std::vector<BufferSpec>& buffers, const std::vector<CallSpec>& calls, size_t c) {
  try {
    check_call_spec(buffers, calls[c]);
  } catch (const ShapeError& error) {
    throw ShapeError("call " + std::to_string(c) + ", " + error.what());
  } catch (const KernelError& error) {
    throw KernelError("call " + std::to_string(c) + ", " + error.what());
  }
}

// The most that one of the calls so far wants.
void widen(Scratch& most, const Call& call, int threads) {
  if (call.op->scratch == nullptr) return;
  const Scratch wanted = call.op->scratch(call, threads);
  most.shared = std::max(most.shared, wanted.shared);
  most.per_worker = std::max(most.per_worker, wanted.per_worker);
}

}  // namespace

Cost cost_of(const std::vector<BufferSpec>& buffers, const std::vector<CallSpec>& calls, int threads) {
  constexpr double kPerCall = 1 << 20, kPerElement = 128;  // reading, writing and hashing, counted in multiply-adds
  Cost cost;
  Scratch most;
  for (size_t c = 0; c < calls.size(); ++c) {
    check_numbered(buffers, calls, c);
    const Call call = bound_shapes(calls[c]);
    const Signature& signature = signature_of(*call.op);
    cost.work += kPerCall + declared_work(*call.op, check_call(call));
    for (size_t i = 0; i < signature.operands.size(); ++i) {
      cost.work += kPerElement * static_cast<double>(call.size(static_cast<int>(i)));
      if (signature.operands[i].direction == Direction::In) continue;
      ++cost.outputs;
      cost.chunks += chunk_count(call.size(static_cast<int>(i)) * bytes_of(signature.operands[i].dtype));
    }
    widen(most, call, threads);
  }
  cost.scratch = most.shared + scratch_step(most) * threads;
  return cost;
}

Executor::Executor(std::vector<BufferSpec> buffers, const std::vector<CallSpec>& calls, int64_t arena_bytes,
                   int threads)
    : buffers_(std::move(buffers)), nanoseconds_(calls.size()), threads_(threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw KernelError("threads must be 1 to " + std::to_string(kMaxThreads) + ", not " + std::to_string(threads));
  }
  std::vector<int> external(buffers_.size(), -1);
  int externals = 0;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const BufferSpec& buffer = buffers_[i];
    if (buffer.kind != BufferKind::Temp) {
      external[i] = externals++;
    } else if (buffer.arena_offset < 0 || buffer.arena_offset % kLine != 0 ||
               elements_of(buffer.shape) * bytes_of(buffer.dtype) > arena_bytes - buffer.arena_offset) {
      throw KernelError("temp buffer " + buffer.name + " lies outside the arena of the plan");
    }
  }
  arena_ = allocate(arena_bytes);
  Scratch most;
  for (size_t c = 0; c < calls.size(); ++c) {
    check_numbered(buffers_, calls, c);
    Call call = bound_shapes(calls[c]);
    for (size_t i = 0; i < calls[c].operands.size(); ++i) {
      const ViewSpec& view = calls[c].operands[i];
      const int64_t bytes = view.offset * bytes_of(buffers_[view.buffer].dtype);
      if (external[view.buffer] >= 0) {
        bindings_.push_back({static_cast<int>(c), static_cast<int>(i), external[view.buffer], bytes});
      } else {
        call.operands[i].data = arena_.get() + buffers_[view.buffer].arena_offset + bytes;
      }
    }
    widen(most, call, threads);
    calls_.push_back(call);
  }
  scratch_bytes_ = scratch_step(most);
  scratch_ = allocate(scratch_bytes_ * threads);
  shared_ = allocate(most.shared);
}

// All workers hash: a traced run waits for SHA-256.
void Executor::hash_outputs(int call, size_t& next, Worker& worker) {
  for (; next < traced_->size() && (*traced_)[next].call == call; ++next) {
    Written& written = (*traced_)[next];
    const Operand& operand = calls_[call].operands[written.operand];
    const DType dtype = signature_of(*calls_[call].op).operands[written.operand].dtype;
    for (int64_t chunk; (chunk = worker.take()) < static_cast<int64_t>(written.chunks.size());) {
      written.chunks[chunk] = chunk_hash(operand.data, operand.size() * bytes_of(dtype), dtype, chunk);
    }
    worker.barrier();
  }
}

void Executor::work(Worker& worker) {
  const FloatingPointEnvironment environment;
  worker.set_scratch(scratch_.get() + scratch_bytes_ * worker.index(), shared_.get());
  using Clock = std::chrono::steady_clock;
  auto before = Clock::now();
  size_t next_traced = 0;
  for (size_t c = 0; c < calls_.size(); ++c) {
    calls_[c].op->run(calls_[c], worker);
    worker.barrier();
    if (worker.stopped()) {
      if (worker.index() == 0) failed_call_ = static_cast<int>(c);
      return;
    }
    if (worker.index() == 0) {
      const auto now = Clock::now();
      nanoseconds_[c] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
      before = now;
    }
    if (traced_ != nullptr) hash_outputs(static_cast<int>(c), next_traced, worker);
  }
}

std::vector<Written> Executor::trace(const std::vector<void*>& external) {
  std::vector<Written> traced;  // all memory taken here: workers must not throw
  for (size_t c = 0; c < calls_.size(); ++c) {
    const Signature& signature = signature_of(*calls_[c].op);
    for (size_t i = 0; i < signature.operands.size(); ++i) {
      if (signature.operands[i].direction == Direction::In) continue;
      const int64_t chunks = chunk_count(calls_[c].operands[i].size() * bytes_of(signature.operands[i].dtype));
      traced.push_back({static_cast<int>(c), static_cast<int>(i), std::vector<Hash>(chunks)});
    }
  }
  run(external, &traced);
  return traced;
}

void Executor::run(const std::vector<void*>& external) { run(external, nullptr); }

void Executor::run(const std::vector<void*>& external, std::vector<Written>* traced) {
  const std::lock_guard<std::mutex> one_run_at_a_time(mutex_);
  traced_ = traced;
  for (const Binding& binding : bindings_) {
    calls_[binding.call].operands[binding.operand].data = static_cast<char*>(external[binding.buffer]) + binding.bytes;
  }
  Team team(threads_);
  run_on_team(team, [](Worker& worker, void* self) { static_cast<Executor*>(self)->work(worker); }, this);
  if (team.failed()) {
    const Failure& f = team.failure();
    throw KernelError("call " + std::to_string(failed_call_) + ", " + calls_[failed_call_].op->name + ": " + f.operand +
                      "[" + std::to_string(f.index) + "] = " + std::to_string(f.value) + " is outside " +
                      std::to_string(f.low) + " … " + std::to_string(f.high));
  }
}

}  // namespace bitwitness

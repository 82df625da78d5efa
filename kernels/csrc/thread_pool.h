// A team of threads that run one function together, with barriers and a shared task counter.
//
// The pool is ours, not OpenMP: torch carries its own OpenMP runtime, and two of them in one process fight over
// the cores. Threads spin briefly, then sleep. After a fork the child starts with a fresh pool.
#pragma once

#include <atomic>
#include <cstdint>

#include "operator.h"

namespace bitwitness {

// The first bad index that an operator met in its data.
struct Failure {
  const char* operand = nullptr;
  int64_t index = 0, value = 0, low = 0, high = 0;  // operand[index] = value is outside low … high
};

// What the workers of one run share.
class Team {
 public:
  explicit Team(int workers) : workers_(workers) {}
  int workers() const { return workers_; }
  bool failed() const { return failed_.load(); }
  const Failure& failure() const { return failure_; }

 private:
  friend class Worker;
  const int workers_;
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<int32_t> generation_{0};
  std::atomic<bool> failed_{false};
  bool stopped_ = false;  // failed_ as the last barrier saw it, so that all workers agree
  Failure failure_;
};

// One thread's place in a team. Methods are out of line on purpose: operators are compiled per instruction set.
class Worker {
 public:
  Worker(Team& team, int index) : team_(team), index_(index) {}

  int index() const;
  int count() const;

  // The next task of the current phase, 0, 1, 2, …; every worker stops at its own bound, then meets a barrier,
  // which starts the count again. Tasks divide outputs, never a sum, so who takes which changes no bit.
  int64_t take();

  // Wait for all workers.
  void barrier();

  // Report an index outside its range. The run stops at the next barrier after this operator.
  void fail(const char* operand, int64_t index, int64_t value, int64_t low, int64_t high);
  bool stopped() const;

  void* scratch() const;
  void* shared() const;
  void set_scratch(void* own, void* shared);

 private:
  Team& team_;
  const int index_;
  void* scratch_ = nullptr;
  void* shared_ = nullptr;
};

// Run body(worker, context) on `team.workers()` threads, the calling one included, and return when all are done.
// Runs of different callers on more than one thread wait for each other.
void run_on_team(Team& team, void (*body)(Worker&, void*), void* context);

}  // namespace bitwitness

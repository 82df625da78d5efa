#include "thread_pool.h"

#include <pthread.h>

#include <deque>
#include <mutex>
#include <thread>

namespace bitwitness {
namespace {

// About 20 to 50 microseconds: longer than a gap between two operators, shorter than a scheduler's time slice.
constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Wait until `value` is no longer `old`: spin first, since barriers are mostly met within microseconds.
void wait_while(const std::atomic<int32_t>& value, int32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

class ThreadPool {
 public:
  void run(Team& team, void (*body)(Worker&, void*), void* context) {
    const std::lock_guard<std::mutex> one_run_at_a_time(mutex_);
    const int helpers = team.workers() - 1;
    while (static_cast<int>(helpers_.size()) < helpers) {
      Helper& helper = helpers_.emplace_back();
      std::thread([this, &helper, index = static_cast<int>(helpers_.size())] { serve(helper, index); }).detach();
    }
    team_ = &team, body_ = body, context_ = context;
    running_.store(helpers, std::memory_order_relaxed);
    for (int i = 0; i < helpers; ++i) {
      helpers_[i].runs.fetch_add(1, std::memory_order_release);
      helpers_[i].runs.notify_one();
    }
    Worker caller(team, 0);
    body(caller, context);
    for (int32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) wait_while(running_, left);
  }

 private:
  // A thread of the pool; `runs` counts those that it was called to.
  struct Helper {
    alignas(64) std::atomic<int32_t> runs{0};
  };

  // Threads live as long as the process: joining them when it ends could wait for ever on one that was stopped.
  void serve(Helper& helper, int index) {
    for (int32_t seen = 0;;) {
      wait_while(helper.runs, seen);
      seen = helper.runs.load(std::memory_order_acquire);
      Worker worker(*team_, index);
      body_(worker, context_);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
    }
  }

  std::mutex mutex_;
  std::deque<Helper> helpers_;  // elements stay where they are
  Team* team_ = nullptr;
  void (*body_)(Worker&, void*) = nullptr;
  void* context_ = nullptr;
  std::atomic<int32_t> running_{0};
};

ThreadPool* pool = nullptr;
std::once_flag once;

ThreadPool& the_pool() {
  // A forked child has the memory of the pool but none of its threads: it leaks the copy and makes its own.
  std::call_once(once, [] {
    pool = new ThreadPool;
    pthread_atfork(nullptr, nullptr, [] { pool = new ThreadPool; });
  });
  return *pool;
}

}  // namespace

int Worker::index() const { return index_; }
int Worker::count() const { return team_.workers_; }
int64_t Worker::take() { return team_.next_task_.fetch_add(1, std::memory_order_relaxed); }
bool Worker::stopped() const { return team_.stopped_; }
void* Worker::scratch() const { return scratch_; }
void* Worker::shared() const { return shared_; }
void Worker::set_scratch(void* own, void* shared) { scratch_ = own, shared_ = shared; }

void Worker::barrier() {
  Team& team = team_;
  const int32_t generation = team.generation_.load(std::memory_order_acquire);
  if (team.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == team.workers_) {
    team.arrived_.store(0, std::memory_order_relaxed);
    team.next_task_.store(0, std::memory_order_relaxed);
    team.stopped_ = team.failed_.load(std::memory_order_relaxed);
    team.generation_.store(generation + 1, std::memory_order_release);
    if (team.workers_ > 1) team.generation_.notify_all();
  } else {
    wait_while(team.generation_, generation);
  }
}

void Worker::fail(const char* operand, int64_t index, int64_t value, int64_t low, int64_t high) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  // The lowest index is reported, whichever worker met it first, so that the message is the same in every run.
  if (!team_.failed_ || index < team_.failure_.index) team_.failure_ = {operand, index, value, low, high};
  team_.failed_.store(true, std::memory_order_relaxed);
}

void run_on_team(Team& team, void (*body)(Worker&, void*), void* context) {
  if (team.workers() == 1) {
    Worker caller(team, 0);
    body(caller, context);
  } else {
    the_pool().run(team, body, context);
  }
}

}  // namespace bitwitness

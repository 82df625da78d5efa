// The floating-point control word, set for the time of a scope: round to nearest even, subnormals kept, no traps.
//
// It belongs to a thread, and others change it (torch.set_flush_denormal, a library built with -ffast-math):
// every worker sets it for every run, and puts back what it found.
#pragma once

#include <cstdint>

namespace bitwitness {

class FloatingPointEnvironment {
 public:
  FloatingPointEnvironment() : saved_(read()) { write(kDefault); }
  ~FloatingPointEnvironment() { write(saved_); }
  FloatingPointEnvironment(const FloatingPointEnvironment&) = delete;
  FloatingPointEnvironment& operator=(const FloatingPointEnvironment&) = delete;

#if defined(__x86_64__)
  using Word = uint32_t;
  static Word read() { return __builtin_ia32_stmxcsr(); }
  static void write(Word word) { __builtin_ia32_ldmxcsr(word); }

 private:
  static constexpr Word kDefault = 0x1F80;  // MXCSR: all exceptions masked, nearest, no FTZ, no DAZ
#elif defined(__aarch64__)
  using Word = uint64_t;
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }

 private:
  static constexpr Word kDefault = 0;  // FPCR: nearest, no FZ, no DN, no traps
#else
#error "name this processor's floating-point control word"
#endif

  const Word saved_;
};

}  // namespace bitwitness

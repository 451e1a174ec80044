// Numbers of PTX, and what its instructions make of those of one lane.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

// Formats of 16 bits compute as float32 and round once.
struct Half {
  _Float16 bits;
  Half() = default;
  Half(float x) : bits(static_cast<_Float16>(x)) {}
  operator float() const { return bits; }
};

struct Bfloat {
  uint16_t bits;
  Bfloat() = default;
  Bfloat(float x) {
    uint32_t word = std::bit_cast<uint32_t>(x);
    bits = std::isnan(x) ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

template <class T> uint32_t bits_of(T x) { return std::bit_cast<uint16_t>(x); }

inline float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// Approximate functions: exact, one ulp up, down, or either by a hash of the argument, as in `tests/interpreter.py`.
enum Functions { EXACT, UP, DOWN, EITHER };
inline thread_local int functions = EXACT;

inline float off(float value, float argument) {
  if (functions == EXACT || !std::isfinite(value) || value == 0) return value;
  bool is_up = functions == UP || (functions == EITHER && std::bit_cast<uint32_t>(argument) * 2654435769u >> 31);
  return flushed(std::nextafterf(value, is_up ? INFINITY : -INFINITY));
}

inline float ex2(float x) { return off(flushed(std::exp2(flushed(x))), x); }
inline float lg2(float x) { return off(std::log2(flushed(x)), x); }
inline float rcp(float x) { return off(flushed(1 / flushed(x)), x); }
inline float rsqrt(float x) { return off(static_cast<float>(1 / std::sqrt(static_cast<double>(flushed(x)))), x); }

// A NaN loses against a number, unless the instruction hands it on.
// The larger of two zeros is the positive one.
inline float largest(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  return a == b ? (std::signbit(a) ? b : a) : std::max(a, b);
}

inline float smallest(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  return a == b ? (std::signbit(a) ? a : b) : std::min(a, b);
}

inline float nan_or(float a, float b, float other) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : other;
}

// To an integer: NaN is 0, of 64 bits the smallest; what is too large is the largest.
template <class R, class X> R saturated(X x) {
  if (std::isnan(x)) return sizeof(R) == 8 ? std::numeric_limits<R>::min() : 0;
  if (x >= static_cast<X>(std::numeric_limits<R>::max())) return std::numeric_limits<R>::max();
  if (x <= static_cast<X>(std::numeric_limits<R>::min())) return std::numeric_limits<R>::min();
  return static_cast<R>(x);
}

// Shifts beyond the width leave nothing but the sign.
template <class T> T shifted_left(T a, uint32_t n) { return n < 8 * sizeof(T) ? a << n : 0; }
template <class T> T shifted_right(T a, uint32_t n) { return n < 8 * sizeof(T) ? a >> n : a < 0 ? -1 : 0; }

// A field of n bits from bit `at` on; a signed one is extended by its highest bit, or the number's where it ends.
template <class T> T field(T a, uint32_t at, uint32_t n) {
  constexpr uint32_t width = 8 * sizeof(T);
  at &= 255, n &= 255;
  T result = 0;
  bool sign = std::is_signed_v<T> && n && (a >> (at + n - 1 < width ? at + n - 1 : width - 1) & 1);
  for (uint32_t i = 0; i < width; i++) {
    bool bit = i < n && at + i < width ? a >> (at + i) & 1 : sign;
    result |= static_cast<T>(static_cast<T>(bit) << i);
  }
  return result;
}

// Four bytes chosen from eight; the fourth bit of a choice spreads the byte's sign.
inline uint32_t permuted(uint32_t a, uint32_t b, uint32_t choice) {
  uint64_t both = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; i++) {
    uint32_t one = choice >> 4 * i & 15;
    uint32_t byte = both >> 8 * (one & 7) & 0xff;
    if (one & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

inline uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t n) {
  return (uint64_t(high) << 32 | low) << (n & 31) >> 32;
}
inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n) {
  return (uint64_t(high) << 32 | low) >> (n & 31);
}

// From what an instruction does to the numbers of one lane to what it does to a warp, and what operands it takes.
#pragma once

#include <string>
#include <tuple>
#include <utility>

#include "machine.h"

// How an instruction runs, and its operands for the parser, in the words of operands.py: one for each, alternatives
// behind bars. "w4" is a register of 4 bytes that it writes, "W4" one at least as wide, "r4" a register or an immediate
// that it reads, "R4" one at least as wide, "wp" and "rp" predicates, "a" an address, "c" a parameter; "2xr4" stands for {a, b}.
struct Form {
  Handler run;
  std::string (*operands)();
};

template <class T> std::string written() { return "w" + std::to_string(sizeof(T)); }
template <class T> std::string given() { return "r" + std::to_string(sizeof(T)); }

// An operand's numbers, one a lane: a register as it lies there, or an immediate 32 times.
template <class T> struct Lanes {
  const T* values;
  T own[LANES];

  void load(Warp& warp, const Operand& operand) {
    if (operand.place >= 0) {
      values = warp.lanes<T>(operand.place);
      return;
    }
    T one;
    std::memcpy(&one, &operand.value, sizeof(T));
    std::fill(own, own + LANES, one);
    values = own;
  }

  T operator[](int lane) const { return values[lane]; }
};

template <class T> void assign(Warp& warp, const Operand& to, const T* values, uint32_t lanes) {
  T* place = warp.lanes<T>(to.place);
  if (lanes == EVERY) std::memcpy(place, values, LANES * sizeof(T));
  else
    for (int lane = 0; lane < LANES; lane++)
      if (lanes >> lane & 1) place[lane] = values[lane];
}

inline uint32_t mask(Warp& warp, const Operand& operand) {
  return operand.place >= 0 ? *warp.lanes<uint32_t>(operand.place) : operand.value ? EVERY : 0;
}

inline void assign_mask(Warp& warp, const Operand& to, uint32_t values, uint32_t lanes) {
  uint32_t& place = *warp.lanes<uint32_t>(to.place);
  place = (place & ~lanes) | (values & lanes);
}

// The types of a function of one lane.
template <class F> struct Of : Of<decltype(&F::operator())> {};
template <class F, class R, class... A> struct Of<R (F::*)(A...) const> {
  using Result = R;
  using Arguments = std::tuple<Lanes<A>...>;
  static constexpr int count = sizeof...(A);
  static std::string operands() { return ((" " + given<A>()) + ...); }
};

template <class Arguments> void load_all(Machine& m, Warp& warp, const Instruction& x, int first, Arguments& in) {
  std::apply([&](auto&... one) { (one.load(warp, m.operand(x, first++)), ...); }, in);
}

// d = F(a, b, …)
template <auto F> void run_each(Machine& m, Warp& warp, const Instruction& x) {
  using Types = Of<decltype(F)>;
  typename Types::Arguments in;
  typename Types::Result out[LANES];
  load_all(m, warp, x, 1, in);
  for (int lane = 0; lane < LANES; lane++)
    out[lane] = std::apply([&](const auto&... a) { return F(a[lane]...); }, in);
  assign(warp, m.operand(x, 0), out, m.lanes_of(warp, x));
}
template <auto F> constexpr Form each{run_each<F>, [] {
  return written<typename Of<decltype(F)>::Result>() + Of<decltype(F)>::operands();
}};

// d = F(a) of an integer, which may be the lower part of a wider register.
template <auto F, class R, class T> void run_converted(Machine& m, Warp& warp, const Instruction& x) {
  const Operand& from = m.operand(x, 1);
  if (from.place < 0 || from.bytes == sizeof(T)) return run_each<F>(m, warp, x);
  R out[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    T low;
    std::memcpy(&low, &warp.registers[from.place + lane * from.bytes], sizeof(T));
    out[lane] = F(low);
  }
  assign(warp, m.operand(x, 0), out, m.lanes_of(warp, x));
}
template <class R, class T, auto F = [](T a) -> R { return a; }> constexpr Form converted{run_converted<F, R, T>, [] {
  return written<R>() + " R" + std::to_string(sizeof(T));
}};

// p = F(a, b)
template <auto F> void run_compare(Machine& m, Warp& warp, const Instruction& x) {
  typename Of<decltype(F)>::Arguments in;
  load_all(m, warp, x, 1, in);
  uint32_t result = 0;
  for (int lane = 0; lane < LANES; lane++)
    result |= uint32_t(std::apply([&](const auto&... a) { return F(a[lane]...); }, in)) << lane;
  assign_mask(warp, m.operand(x, 0), result, m.lanes_of(warp, x));
}
template <auto F> constexpr Form compare{run_compare<F>, [] { return "wp" + Of<decltype(F)>::operands(); }};

// p = F(q, …) of predicates, all lanes at once
template <auto F> void run_logic(Machine& m, Warp& warp, const Instruction& x) {
  uint32_t result, first = mask(warp, m.operand(x, 1));
  if constexpr (Of<decltype(F)>::count == 1) result = F(first);
  else result = F(first, mask(warp, m.operand(x, 2)));
  assign_mask(warp, m.operand(x, 0), result, m.lanes_of(warp, x));
}
template <auto F> constexpr Form logic{run_logic<F>, [] {
  return std::string(Of<decltype(F)>::count == 1 ? "wp rp" : "wp rp rp");
}};

template <class T> void run_choice(Machine& m, Warp& warp, const Instruction& x) {
  Lanes<T> a, b;
  a.load(warp, m.operand(x, 1));
  b.load(warp, m.operand(x, 2));
  uint32_t chosen = mask(warp, m.operand(x, 3));
  T out[LANES];
  for (int lane = 0; lane < LANES; lane++) out[lane] = chosen >> lane & 1 ? a[lane] : b[lane];
  assign(warp, m.operand(x, 0), out, m.lanes_of(warp, x));
}
template <class T> constexpr Form choice{run_choice<T>, [] {
  return written<T>() + " " + given<T>() + " " + given<T>() + " rp";
}};

// d = a; {d0, d1} = a; d = {a0, a1}, the first being the lowest.
template <class T> void run_move(Machine& m, Warp& warp, const Instruction& x) {
  alignas(8) unsigned char bytes[LANES * sizeof(T)];
  int n_from = 0;
  for (int i = 0; i < x.count; i++) n_from += m.operand(x, i).group == 1;
  auto of_parts = [&](int first, int n, auto transfer) {
    for (int i = 0; i < n; i++)
      for (int lane = 0; lane < LANES; lane++)
        transfer(m.operand(x, first + i), lane, &bytes[lane * sizeof(T) + i * (sizeof(T) / n)], sizeof(T) / n);
  };
  of_parts(x.count - n_from, n_from, [&](const Operand& from, int lane, unsigned char* place, size_t size) {
    if (from.place < 0) std::memcpy(place, &from.value, size);
    else std::memcpy(place, &warp.registers[from.place + lane * size], size);
  });
  uint32_t lanes = m.lanes_of(warp, x);
  of_parts(0, x.count - n_from, [&](const Operand& to, int lane, unsigned char* place, size_t size) {
    if (to.place < 0) return;  // a part that nobody wants
    if (lanes >> lane & 1) std::memcpy(&warp.registers[to.place + lane * size], place, size);
  });
}
template <class T> constexpr Form move{run_move<T>, [] {
  std::string forms = written<T>() + " " + given<T>();
  for (size_t n = 2; sizeof(T) / n >= 2; n *= 2) {
    std::string times = std::to_string(n) + "x", part = std::to_string(sizeof(T) / n);
    forms += " | " + times + "o" + part + " " + given<T>() + " | " + written<T>() + " " + times + "r" + part;
  }
  return forms;
}};

// Addresses [register + displacement], or [displacement], of all lanes.
struct Addresses {
  uint64_t values[LANES];

  Addresses(Warp& warp, const Operand& operand) {
    for (int lane = 0; lane < LANES; lane++) {
      uint64_t base = operand.place < 0 ? 0
                      : operand.bytes == 8 ? warp.lanes<uint64_t>(operand.place)[lane]
                                           : warp.lanes<uint32_t>(operand.place)[lane];
      values[lane] = base + operand.value;
    }
  }
};

enum class Space { GLOBAL, SHARED, LOCAL };

// 1, 2 or 4 registers, 16 bytes together at most, before or behind an address.
template <class T> std::string vectors(std::string before, std::string one, std::string behind) {
  std::string forms = before + one + behind;
  for (size_t n = 2; n <= 4 && n * sizeof(T) <= 16; n *= 2)
    forms += " | " + before + std::to_string(n) + "x" + one + behind;
  return forms;
}

// {d0, d1, …} = [a], elements of type T
template <Space space, class T> void run_load(Machine& m, Warp& warp, const Instruction& x) {
  int n = x.count - 1, bytes = n * sizeof(T);
  Addresses from(warp, m.operand(x, n));
  uint32_t lanes = m.lanes_of(warp, x);
  T out[4][LANES];
  for (int lane = 0; lane < LANES; lane++)
    if (lanes >> lane & 1) {
      const unsigned char* data = space == Space::GLOBAL   ? m.global(warp, lane, from.values[lane], bytes)
                                  : space == Space::SHARED ? m.shared_read(warp, lane, from.values[lane], bytes)
                                                           : m.local(warp, lane, from.values[lane], bytes);
      for (int i = 0; i < n; i++) std::memcpy(&out[i][lane], data + i * sizeof(T), sizeof(T));
    }
  for (int i = 0; i < n; i++) {
    const Operand& to = m.operand(x, i);
    auto widened = [&](auto one) {  // a wider register takes the number
      decltype(one) wide[LANES] = {};
      for (int lane = 0; lane < LANES; lane++)
        if (lanes >> lane & 1) wide[lane] = out[i][lane];
      assign(warp, to, wide, lanes);
    };
    if (sizeof(T) < 8 && to.bytes == 8) widened(int64_t());
    else if (sizeof(T) < 4 && to.bytes == 4) widened(int32_t());
    else if (sizeof(T) < 2 && to.bytes == 2) widened(int16_t());
    else assign(warp, to, out[i], lanes);
  }
}
template <Space space, class T> constexpr Form load{run_load<space, T>, [] {
  return vectors<T>("", "W" + std::to_string(sizeof(T)), " a");
}};

// No register is a byte wide.
template <class T> using InRegister = std::conditional_t<sizeof(T) == 1, uint16_t, T>;

// [a] = {b0, b1, …}
template <Space space, class T> void run_store(Machine& m, Warp& warp, const Instruction& x) {
  int n = x.count - 1, bytes = n * sizeof(T);
  Addresses to(warp, m.operand(x, 0));
  uint32_t lanes = m.lanes_of(warp, x);
  Lanes<InRegister<T>> in[4];
  for (int i = 0; i < n; i++) in[i].load(warp, m.operand(x, i + 1));
  for (int lane = 0; lane < LANES; lane++)
    if (lanes >> lane & 1) {
      T data[4];
      for (int i = 0; i < n; i++) data[i] = in[i][lane];
      uint64_t address = to.values[lane];
      if (space == Space::SHARED) m.shared_write(warp, lane, address, bytes, data);
      else if (space == Space::LOCAL) std::memcpy(m.local(warp, lane, address, bytes), data, bytes);
      else std::memcpy(m.global(warp, lane, address, bytes), data, bytes);
    }
}
template <Space space, class T> constexpr Form store{run_store<space, T>, [] {
  return vectors<T>("a ", given<InRegister<T>>(), "");
}};

// A parameter is the same for all lanes. As what it is read, T, says how a wider register is filled.
template <class T> void run_load_parameter(Machine& m, Warp& warp, const Instruction& x) {
  T value;
  std::memcpy(&value, &m.launch.parameters[m.operand(x, 1).value], sizeof(T));
  auto fill = [&](auto wide) {
    decltype(wide) out[LANES];
    std::fill(out, out + LANES, wide);
    assign(warp, m.operand(x, 0), out, m.lanes_of(warp, x));
  };
  if (m.operand(x, 0).bytes == 8) fill(int64_t(value));
  else fill(value);
}
template <class T> constexpr Form load_parameter{run_load_parameter<T>, [] {
  return "W" + std::to_string(sizeof(T)) + " c";
}};

// Lanes read each other's numbers: `choose` says whose.
template <auto choose> void run_shuffle(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  Lanes<uint32_t> value, by;
  value.load(warp, m.operand(x, 1));
  by.load(warp, m.operand(x, 2));
  uint32_t out[LANES];
  for (uint32_t lane = 0; lane < LANES; lane++) out[lane] = value[choose(lane, by[lane]) & 31];
  assign(warp, m.operand(x, 0), out, EVERY);
}
template <auto choose> constexpr Form shuffle{run_shuffle<choose>, [] { return std::string("w4 r4 r4 r4 r4"); }};

template <auto F> void run_reduce(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  typename Of<decltype(F)>::Arguments in;
  std::get<0>(in).load(warp, m.operand(x, 1));
  auto result = std::get<0>(in)[0];
  for (int lane = 1; lane < LANES; lane++) result = F(result, std::get<0>(in)[lane]);
  typename Of<decltype(F)>::Result out[LANES];
  std::fill(out, out + LANES, result);
  assign(warp, m.operand(x, 0), out, EVERY);
}
template <auto F> constexpr Form reduce{run_reduce<F>, [] { return std::string("w4 r4 r4"); }};

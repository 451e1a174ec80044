// From what an instruction does to the numbers of one lane to what it does to a warp.
#pragma once

#include <tuple>
#include <utility>

#include "machine.h"

// An operand's numbers, one a lane: a register as it lies there, or an immediate 32 times.
template <class T> struct Lanes {
  const T* values;
  T own[LANES];

  void load(Machine& machine, Warp& warp, const Operand& operand) {
    if (operand.place >= 0) {
      if (operand.bytes != sizeof(T)) machine.fault(warp, 0, "a register of another width", operand.bytes);
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

template <class T> void assign(Machine& machine, Warp& warp, const Operand& to, const T* values, uint32_t lanes) {
  if (to.bytes != sizeof(T)) return machine.fault(warp, 0, "a register of another width", to.bytes);
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
};

template <class Arguments> void load_all(Machine& m, Warp& warp, const Instruction& x, int first, Arguments& in) {
  std::apply([&](auto&... each) { (each.load(m, warp, m.operand(x, first++)), ...); }, in);
}

// d = F(a, b, …)
template <auto F> void each(Machine& m, Warp& warp, const Instruction& x) {
  using Types = Of<decltype(F)>;
  typename Types::Arguments in;
  typename Types::Result out[LANES];
  load_all(m, warp, x, 1, in);
  for (int lane = 0; lane < LANES; lane++)
    out[lane] = std::apply([&](const auto&... a) { return F(a[lane]...); }, in);
  assign(m, warp, m.operand(x, 0), out, m.lanes_of(warp, x));
}

// p = F(a, b)
template <auto F> void compare(Machine& m, Warp& warp, const Instruction& x) {
  typename Of<decltype(F)>::Arguments in;
  load_all(m, warp, x, 1, in);
  uint32_t result = 0;
  for (int lane = 0; lane < LANES; lane++)
    result |= uint32_t(std::apply([&](const auto&... a) { return F(a[lane]...); }, in)) << lane;
  assign_mask(warp, m.operand(x, 0), result, m.lanes_of(warp, x));
}

// p = F(q, …) of predicates, all lanes at once
template <auto F> void logic(Machine& m, Warp& warp, const Instruction& x) {
  uint32_t second = x.count > 2 ? mask(warp, m.operand(x, 2)) : 0;
  assign_mask(warp, m.operand(x, 0), F(mask(warp, m.operand(x, 1)), second), m.lanes_of(warp, x));
}

template <class T> void select(Machine& m, Warp& warp, const Instruction& x) {
  Lanes<T> a, b;
  a.load(m, warp, m.operand(x, 1));
  b.load(m, warp, m.operand(x, 2));
  uint32_t chosen = mask(warp, m.operand(x, 3));
  T out[LANES];
  for (int lane = 0; lane < LANES; lane++) out[lane] = chosen >> lane & 1 ? a[lane] : b[lane];
  assign(m, warp, m.operand(x, 0), out, m.lanes_of(warp, x));
}

// d = a; {d0, d1} = a; d = {a0, a1}, the first being the lowest.
template <class T> void move(Machine& m, Warp& warp, const Instruction& x) {
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
    if (to.bytes != int(size)) return m.fault(warp, lane, "a register of another width", to.bytes);
    if (lanes >> lane & 1) std::memcpy(&warp.registers[to.place + lane * size], place, size);
  });
}

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

// {d0, d1, …} = [a], elements of type T
template <Space space, class T> void read(Machine& m, Warp& warp, const Instruction& x) {
  int n = x.count - 1, bytes = n * sizeof(T);
  Addresses from(warp, m.operand(x, n));
  uint32_t lanes = m.lanes_of(warp, x);
  T out[8][LANES];
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
      assign(m, warp, to, wide, lanes);
    };
    if (sizeof(T) < 8 && to.bytes == 8) widened(int64_t());
    else if (sizeof(T) < 4 && to.bytes == 4) widened(int32_t());
    else if (sizeof(T) < 2 && to.bytes == 2) widened(int16_t());
    else assign(m, warp, to, out[i], lanes);
  }
}

// [a] = {b0, b1, …}
template <Space space, class T> void write(Machine& m, Warp& warp, const Instruction& x) {
  int n = x.count - 1, bytes = n * sizeof(T);
  Addresses to(warp, m.operand(x, 0));
  uint32_t lanes = m.lanes_of(warp, x);
  // No register is a byte wide.
  Lanes<std::conditional_t<sizeof(T) == 1, uint16_t, T>> in[8];
  for (int i = 0; i < n; i++) in[i].load(m, warp, m.operand(x, i + 1));
  for (int lane = 0; lane < LANES; lane++)
    if (lanes >> lane & 1) {
      T data[8];
      for (int i = 0; i < n; i++) data[i] = in[i][lane];
      uint64_t address = to.values[lane];
      if (space == Space::SHARED) m.shared_write(warp, lane, address, bytes, data);
      else if (space == Space::LOCAL) std::memcpy(m.local(warp, lane, address, bytes), data, bytes);
      else std::memcpy(m.global(warp, lane, address, bytes), data, bytes);
    }
}

// A parameter is the same for all lanes. As what it is read, T, says how a wider register is filled.
template <class T> void read_parameter(Machine& m, Warp& warp, const Instruction& x) {
  T value;
  std::memcpy(&value, &m.launch.parameters[m.operand(x, 1).value], sizeof(T));
  auto fill = [&](auto wide) {
    decltype(wide) out[LANES];
    std::fill(out, out + LANES, wide);
    assign(m, warp, m.operand(x, 0), out, m.lanes_of(warp, x));
  };
  if (m.operand(x, 0).bytes == 8) fill(int64_t(value));
  else fill(value);
}

// Lanes read each other's numbers: `choose` says whose.
template <auto choose> void shuffle(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  Lanes<uint32_t> value, by;
  value.load(m, warp, m.operand(x, 1));
  by.load(m, warp, m.operand(x, 2));
  uint32_t out[LANES];
  for (uint32_t lane = 0; lane < LANES; lane++) out[lane] = value[choose(lane, by[lane]) & 31];
  assign(m, warp, m.operand(x, 0), out, EVERY);
}

template <auto F> void reduce(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  typename Of<decltype(F)>::Arguments in;
  std::get<0>(in).load(m, warp, m.operand(x, 1));
  auto result = std::get<0>(in)[0];
  for (int lane = 1; lane < LANES; lane++) result = F(result, std::get<0>(in)[lane]);
  typename Of<decltype(F)>::Result out[LANES];
  std::fill(out, out + LANES, result);
  assign(m, warp, m.operand(x, 0), out, EVERY);
}

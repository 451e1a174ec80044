// Matrix instructions: tiles between shared memory and registers, products of a warp and of a group of four.
//
// Products are exact and summed in float64; each instruction rounds its sum once and adds it to the accumulator in
// float32. Tensor cores sum in an order of their own and cut bits off: see docs/guides/gpu.md.
#pragma once

#include "arithmetic.h"
#include "lanes.h"

// Eight rows of 16 bytes; lane 4 r + c holds the numbers 2 c and 2 c + 1 of row r, or of column r.
template <bool is_transposed> void tile_place(int lane, int half, int& row, int& column) {
  row = lane / 4, column = lane % 4 * 2 + half;
  if (is_transposed) std::swap(row, column);
}

inline std::string times(int n, const char* one) { return std::to_string(n) + "x" + one; }

template <int n, bool is_transposed> void run_read_tiles(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  Addresses from(warp, m.operand(x, n));
  for (int i = 0; i < n; i++) {
    uint16_t tile[8][8];
    for (int row = 0; row < 8; row++)
      std::memcpy(tile[row], m.shared_read(warp, i * 8 + row, from.values[i * 8 + row], 16), 16);
    uint32_t out[LANES];
    for (int lane = 0; lane < LANES; lane++) {
      out[lane] = 0;
      for (int half = 0, row, column; half < 2; half++) {
        tile_place<is_transposed>(lane, half, row, column);
        out[lane] |= uint32_t(tile[row][column]) << 16 * half;
      }
    }
    assign(warp, m.operand(x, i), out, EVERY);
  }
}
template <int n, bool is_transposed> constexpr Form read_tiles{run_read_tiles<n, is_transposed>, [] {
  return times(n, "w4 a");
}};

template <int n, bool is_transposed> void run_write_tiles(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  Addresses to(warp, m.operand(x, 0));
  for (int i = 0; i < n; i++) {
    Lanes<uint32_t> in;
    in.load(warp, m.operand(x, i + 1));
    uint16_t tile[8][8];
    for (int lane = 0; lane < LANES; lane++)
      for (int half = 0, row, column; half < 2; half++) {
        tile_place<is_transposed>(lane, half, row, column);
        tile[row][column] = in[lane] >> 16 * half;
      }
    for (int row = 0; row < 8; row++) m.shared_write(warp, i * 8 + row, to.values[i * 8 + row], 16, tile[row]);
  }
}
template <int n, bool is_transposed> constexpr Form write_tiles{run_write_tiles<n, is_transposed>, [] {
  return "a " + times(n, "r4");
}};

template <class T> float number(uint32_t pair, int half) { return std::bit_cast<T>(uint16_t(pair >> 16 * half)); }

// A [16, 16] of 4 registers: lane 4 g + t holds the rows g and g + 8, the columns 2 t, 2 t + 1 and those 8 further on.
template <class T> void left_factor(Machine& m, Warp& warp, const Instruction& x, int first, float (&a)[16][16]) {
  for (int i = 0; i < 4; i++) {
    Lanes<uint32_t> in;
    in.load(warp, m.operand(x, first + i));
    for (int lane = 0; lane < LANES; lane++)
      for (int half = 0; half < 2; half++)
        a[lane / 4 + i % 2 * 8][lane % 4 * 2 + half + i / 2 * 8] = number<T>(in[lane], half);
  }
}

// D [16, N] of N / 2 registers: number i of lane 4 g + t stands in row g, or g + 8, and column 8 (i / 4) + 2 t + i % 2.
template <class Sum> void accumulate(int n, float (*out)[LANES], const float (*old)[LANES], Sum sum) {
  for (int i = 0; i < n / 2; i++)
    for (int lane = 0; lane < LANES; lane++)
      out[i][lane] = old[i][lane] + sum(lane / 4 + (i & 2) * 4, i / 4 * 8 + lane % 4 * 2 + i % 2);
}

// D = A B + C of a warp: B [16, 8] of 2 registers.
template <class T> void run_warp_product(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  float a[16][16], b[16][8], c[4][LANES], out[4][LANES];
  left_factor<T>(m, warp, x, 4, a);
  for (int i = 0; i < 2; i++) {
    Lanes<uint32_t> in;
    in.load(warp, m.operand(x, 8 + i));
    for (int lane = 0; lane < LANES; lane++)
      for (int half = 0; half < 2; half++) b[lane % 4 * 2 + half + 8 * i][lane / 4] = number<T>(in[lane], half);
  }
  for (int i = 0; i < 4; i++) {
    Lanes<float> in;
    in.load(warp, m.operand(x, 10 + i));
    std::copy(in.values, in.values + LANES, c[i]);
  }
  accumulate(8, out, c, [&](int row, int column) {
    double sum = 0;
    for (int k = 0; k < 16; k++) sum += double(a[row][k]) * b[k][column];
    return float(sum);
  });
  for (int i = 0; i < 4; i++) assign(warp, m.operand(x, i), out[i], EVERY);
}
template <class T> constexpr Form warp_product{run_warp_product<T>, [] {
  return std::string("4xw4 4xr4 2xr4 4xr4");
}};

// Where a matrix lies in shared memory: rows of 16, 32, 64 or 128 bytes, eight of which are swizzled together.
struct Descriptor {
  uint32_t start, leading, stride, row, swizzle;

  explicit Descriptor(uint64_t bits) {
    auto bytes = [&](int from) { return uint32_t(bits >> from & 0x3fff) << 4; };
    start = bytes(0), leading = bytes(16), stride = bytes(32);
    int mode = bits >> 62;
    row = mode ? 256 >> mode : 16;
    swizzle = row / 16 - 1;
  }

  // Address of number k of row `outer` of the factor; is_outer_first: neighbours along that dimension lie together.
  uint32_t address(int outer, int k, bool is_outer_first) const {
    int width = row / 2;
    uint32_t offset, along = swizzle ? k * 2 : k % 8 * 2 + k / 8 * leading;
    if (!is_outer_first) offset = outer % 8 * row + outer / 8 * stride + along;
    else if (swizzle) offset = outer % width * 2 + outer / width * leading + k % 8 * row + k / 8 * stride;
    else offset = outer % 8 * 2 + outer / 8 * stride + k % 8 * 16 + k / 8 * leading;
    uint32_t plain = start + offset;
    return plain ^ (plain >> 7 & swizzle) << 4;
  }
};

template <class T> float factor(Machine& m, Warp& warp, const Descriptor& at, int outer, int k, bool is_outer_first) {
  uint32_t address = at.address(outer, k, is_outer_first);
  T value;
  std::memcpy(&value, m.shared_read(warp, 0, address, 2), 2);
  if (is_within(address, 2, m.launch.shared_bytes)) m.product_reads(warp, address, 2);
  return value;
}

// D = A B + D, or A B, of a group of four warps: this warp's 16 rows of 64. A in registers or, as B [N, 16], in memory.
template <class T> void group_product(Machine& m, Warp& warp, const Instruction& x) {
  if (!m.is_whole(warp, m.lanes_of(warp, x))) return;
  int n_sums = 0, n_left = 0;
  for (int i = 0; i < x.count; i++) n_sums += m.operand(x, i).group == 0, n_left += m.operand(x, i).group == 1;
  const Operand* rest = &m.operand(x, n_sums + n_left);  // B, whether D is added, ±A, ±B, A and B the other way round
  auto descriptor = [&](const Operand& operand) {
    Lanes<uint64_t> in;
    in.load(warp, operand);
    return Descriptor(in[0]);
  };
  int n = 2 * n_sums;
  float a[16][16];
  static thread_local float b[16][256], old[128][LANES], out[128][LANES];
  if (n_left == 4) left_factor<T>(m, warp, x, n_sums, a);
  else {
    Descriptor left = descriptor(m.operand(x, n_sums));
    for (int row = 0; row < 16; row++)
      for (int k = 0; k < 16; k++) a[row][k] = factor<T>(m, warp, left, warp.index % 4 * 16 + row, k, rest[4].value);
  }
  bool is_right_turned = rest[n_left == 4 ? 4 : 5].value;
  Descriptor right = descriptor(rest[0]);
  for (int column = 0; column < n; column++)
    for (int k = 0; k < 16; k++) b[k][column] = factor<T>(m, warp, right, column, k, is_right_turned);
  bool is_added = mask(warp, rest[1]);
  for (int i = 0; i < n_sums; i++) {
    const uint32_t* before = m.pending(warp, m.operand(x, i).place);
    for (int lane = 0; lane < LANES; lane++) old[i][lane] = is_added ? std::bit_cast<float>(before[lane]) : -0.0f;
  }
  accumulate(n, out, old, [&](int row, int column) {
    double sum = 0;
    for (int k = 0; k < 16; k++) sum += double(a[row][k]) * b[k][column];
    return float(sum);
  });
  for (int i = 0; i < n_sums; i++) m.promise(warp, m.operand(x, i).place, reinterpret_cast<uint32_t*>(out[i]));
}

// No factor has its sign changed.
inline std::string group_operands(int columns) {
  std::string sums = times(columns / 2, "w4 ");
  return sums + "r8 r8 rp #1 #1 n n | " + sums + "4xr4 r8 rp #1 #1 n";
}

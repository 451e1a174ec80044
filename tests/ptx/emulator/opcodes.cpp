// The instructions of PTX that Triton emits for the kernels, by name; and the entry points for Python.

#include <bit>
#include <string>
#include <unordered_map>

#include "matrix.h"

namespace {

using U16 = uint16_t;
using U32 = uint32_t;
using U64 = uint64_t;
using S32 = int32_t;
using S64 = int64_t;

void barrier(Machine& m, Warp& warp, const Instruction& x) {
  if (m.is_whole(warp, m.lanes_of(warp, x))) warp.state = State::WAITS;
}

void nothing(Machine&, Warp&, const Instruction&) {}

void branch(Machine& m, Warp& warp, const Instruction& x) { m.branch(warp, m.lanes_of(warp, x), x.target); }

void leave(Machine& m, Warp& warp, const Instruction& x) { m.leave(warp, m.lanes_of(warp, x)); }

// [to], [from], bytes, and how many of them to take, the rest being 0
void copy(Machine& m, Warp& warp, const Instruction& x) {
  Addresses to(warp, m.operand(x, 0)), from(warp, m.operand(x, 1));
  int bytes = m.operand(x, 2).value;
  Lanes<U32> taken;
  taken.load(warp, m.operand(x, x.count - 1));
  uint32_t lanes = m.lanes_of(warp, x);
  for (int lane = 0; lane < LANES; lane++)
    if (lanes >> lane & 1) m.copy(warp, lane, to.values[lane], from.values[lane], bytes, taken[lane]);
}

// In bytes: one of these, and how many of them to take.
std::string copy_operands(std::initializer_list<int> sizes) {
  std::string forms;
  for (int bytes : sizes) {
    std::string one = "a a #" + std::to_string(bytes);
    forms += (forms.empty() ? "" : " | ") + one + " | " + one + " r4";
  }
  return forms;
}

void commit_copies(Machine& m, Warp& warp, const Instruction&) { m.commit_copies(warp); }

void wait_for_copies(Machine& m, Warp& warp, const Instruction& x) { m.wait_for_copies(warp, m.operand(x, 0).value); }

void commit_products(Machine& m, Warp& warp, const Instruction&) { m.commit_products(warp); }

void wait_for_products(Machine& m, Warp& warp, const Instruction& x) {
  m.wait_for_products(warp, m.operand(x, 0).value);
}

void proxy_fence(Machine& m, Warp& warp, const Instruction&) {
  warp.fenced = m.clock, warp.fence_epoch = m.epoch;
}

// d = low half of a b, + c, and its carry; d = high half of a b, + c + the carry
void multiply_add_carry_out(Machine& m, Warp& warp, const Instruction& x) {
  std::tuple<Lanes<U32>, Lanes<U32>, Lanes<U32>> in;
  load_all(m, warp, x, 1, in);
  U32 out[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    U64 sum = U64(std::get<0>(in)[lane] * std::get<1>(in)[lane]) + std::get<2>(in)[lane];
    out[lane] = sum, warp.carry[lane] = sum >> 32;
  }
  assign(warp, m.operand(x, 0), out, m.lanes_of(warp, x));
}

void multiply_high_add_carry(Machine& m, Warp& warp, const Instruction& x) {
  std::tuple<Lanes<U32>, Lanes<U32>, Lanes<U32>> in;
  load_all(m, warp, x, 1, in);
  U32 out[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    U32 high = U64(std::get<0>(in)[lane]) * std::get<1>(in)[lane] >> 32;
    out[lane] = high + std::get<2>(in)[lane] + warp.carry[lane];
  }
  assign(warp, m.operand(x, 0), out, m.lanes_of(warp, x));
}

struct Opcode {
  std::string name;
  Handler handler;
  std::string operands;

  Opcode(std::string name, Form form) : Opcode(name, form.run, form.operands()) {}
  Opcode(std::string name, Handler handler, std::string operands) : name(name), handler(handler), operands(operands) {}
};

template <int n> void add_tiles(std::vector<Opcode>& rows) {
  std::string shape = ".sync.aligned.m8n8.x" + std::to_string(n);
  rows.push_back({"ldmatrix" + shape + ".shared.b16", read_tiles<n, false>});
  rows.push_back({"ldmatrix" + shape + ".trans.shared.b16", read_tiles<n, true>});
  rows.push_back({"stmatrix" + shape + ".shared.b16", write_tiles<n, false>});
  rows.push_back({"stmatrix" + shape + ".trans.shared.b16", write_tiles<n, true>});
}

const std::vector<Opcode>& table() {
  static const std::vector<Opcode> known = [] {
    std::vector<Opcode> rows = {
        // Control.
        {"bar.sync", barrier, "n"},
        {"bar.warp.sync", nothing, "r4"},
        {"bra", branch, "l"},
        {"bra.uni", branch, "l"},
        {"ret", leave, ""},
        // Moves.
        {"mov.b16", move<U16>},
        {"mov.u16", move<U16>},
        {"mov.b32", move<U32>},
        {"mov.u32", move<U32>},
        {"mov.b64", move<U64>},
        {"mov.u64", move<U64>},
        {"mov.pred", logic<[](U32 a) -> U32 { return a; }>},
        {"selp.b16", choice<U16>},
        {"selp.b32", choice<U32>},
        {"selp.b64", choice<U64>},
        {"selp.f32", choice<U32>},
        {"prmt.b32", each<[](U32 a, U32 b, U32 c) { return permuted(a, b, c); }>},
        {"shfl.sync.bfly.b32", shuffle<[](U32 lane, U32 by) { return lane ^ by; }>},
        {"shfl.sync.idx.b32", shuffle<[](U32, U32 by) { return by; }>},
        {"shfl.sync.up.b32", shuffle<[](U32 lane, U32 by) { return lane < by ? lane : lane - by; }>},
        {"redux.sync.add.s32", reduce<[](U32 a, U32 b) -> U32 { return a + b; }>},
        {"redux.sync.min.s32", reduce<[](S32 a, S32 b) -> S32 { return std::min(a, b); }>},
        {"redux.sync.max.s32", reduce<[](S32 a, S32 b) -> S32 { return std::max(a, b); }>},
        // Integers.
        {"add.s32", each<[](U32 a, U32 b) -> U32 { return a + b; }>},
        {"add.s64", each<[](U64 a, U64 b) -> U64 { return a + b; }>},
        {"add.u64", each<[](U64 a, U64 b) -> U64 { return a + b; }>},
        {"sub.s32", each<[](U32 a, U32 b) -> U32 { return a - b; }>},
        {"sub.s64", each<[](U64 a, U64 b) -> U64 { return a - b; }>},
        {"neg.s16", each<[](U16 a) -> U16 { return -a; }>},
        {"neg.s32", each<[](U32 a) -> U32 { return -a; }>},
        {"neg.s64", each<[](U64 a) -> U64 { return -a; }>},
        {"mul.lo.s32", each<[](U32 a, U32 b) -> U32 { return a * b; }>},
        {"mul.lo.s64", each<[](U64 a, U64 b) -> U64 { return a * b; }>},
        {"mul.wide.s16", each<[](int16_t a, int16_t b) -> S32 { return S32(a) * b; }>},
        {"mul.wide.s32", each<[](S32 a, S32 b) -> S64 { return S64(a) * b; }>},
        {"mul.wide.u32", each<[](U32 a, U32 b) -> U64 { return U64(a) * b; }>},
        {"mad.lo.s32", each<[](U32 a, U32 b, U32 c) -> U32 { return a * b + c; }>},
        {"mad.lo.s64", each<[](U64 a, U64 b, U64 c) -> U64 { return a * b + c; }>},
        {"mad.wide.u16", each<[](uint16_t a, uint16_t b, U32 c) -> U32 { return U32(a) * b + c; }>},
        {"mad.wide.s32", each<[](S32 a, S32 b, U64 c) -> U64 { return U64(S64(a) * b) + c; }>},
        {"mad.wide.u32", each<[](U32 a, U32 b, U64 c) -> U64 { return U64(a) * b + c; }>},
        {"mad.lo.cc.u32", multiply_add_carry_out, "w4 r4 r4 r4"},
        {"madc.hi.u32", multiply_high_add_carry, "w4 r4 r4 r4"},
        // A quotient by 0 is whatever the machine makes of it.
        {"div.s32", each<[](S32 a, S32 b) -> S32 { return b == 0 ? -1 : b == -1 ? S32(-U32(a)) : a / b; }>},
        {"rem.s32", each<[](S32 a, S32 b) -> S32 { return b == 0 ? a : b == -1 ? 0 : a % b; }>},
        {"div.s64", each<[](S64 a, S64 b) -> S64 { return b == 0 ? -1 : b == -1 ? S64(-U64(a)) : a / b; }>},
        {"rem.s64", each<[](S64 a, S64 b) -> S64 { return b == 0 ? a : b == -1 ? 0 : a % b; }>},
        {"div.u32", each<[](U32 a, U32 b) -> U32 { return b ? a / b : ~0u; }>},
        {"rem.u32", each<[](U32 a, U32 b) -> U32 { return b ? a % b : a; }>},
        {"div.u64", each<[](U64 a, U64 b) -> U64 { return b ? a / b : ~U64(0); }>},
        {"rem.u64", each<[](U64 a, U64 b) -> U64 { return b ? a % b : a; }>},
        {"max.s32", each<[](S32 a, S32 b) -> S32 { return std::max(a, b); }>},
        {"max.u32", each<[](U32 a, U32 b) -> U32 { return std::max(a, b); }>},
        {"max.s64", each<[](S64 a, S64 b) -> S64 { return std::max(a, b); }>},
        {"min.u32", each<[](U32 a, U32 b) -> U32 { return std::min(a, b); }>},
        {"min.u64", each<[](U64 a, U64 b) -> U64 { return std::min(a, b); }>},
        {"min.s32", each<[](S32 a, S32 b) -> S32 { return std::min(a, b); }>},
        {"min.s64", each<[](S64 a, S64 b) -> S64 { return std::min(a, b); }>},
        {"and.b16", each<[](U16 a, U16 b) -> U16 { return a & b; }>},
        {"and.b32", each<[](U32 a, U32 b) -> U32 { return a & b; }>},
        {"and.b64", each<[](U64 a, U64 b) -> U64 { return a & b; }>},
        {"or.b16", each<[](U16 a, U16 b) -> U16 { return a | b; }>},
        {"or.b32", each<[](U32 a, U32 b) -> U32 { return a | b; }>},
        {"or.b64", each<[](U64 a, U64 b) -> U64 { return a | b; }>},
        {"xor.b16", each<[](U16 a, U16 b) -> U16 { return a ^ b; }>},
        {"xor.b32", each<[](U32 a, U32 b) -> U32 { return a ^ b; }>},
        {"xor.b64", each<[](U64 a, U64 b) -> U64 { return a ^ b; }>},
        {"not.b32", each<[](U32 a) -> U32 { return ~a; }>},
        {"shl.b16", each<[](U16 a, U32 n) -> U16 { return shifted_left(a, n); }>},
        {"shl.b32", each<[](U32 a, U32 n) -> U32 { return shifted_left(a, n); }>},
        {"shl.b64", each<[](U64 a, U32 n) -> U64 { return shifted_left(a, n); }>},
        {"shr.u16", each<[](U16 a, U32 n) -> U16 { return shifted_right(a, n); }>},
        {"shr.u32", each<[](U32 a, U32 n) -> U32 { return shifted_right(a, n); }>},
        {"shr.u64", each<[](U64 a, U32 n) -> U64 { return shifted_right(a, n); }>},
        {"shr.s32", each<[](S32 a, U32 n) -> S32 { return shifted_right(a, n); }>},
        {"shr.s64", each<[](S64 a, U32 n) -> S64 { return shifted_right(a, n); }>},
        {"shf.l.wrap.b32", each<[](U32 a, U32 b, U32 n) { return funnel_left(a, b, n); }>},
        {"shf.r.wrap.b32", each<[](U32 a, U32 b, U32 n) { return funnel_right(a, b, n); }>},
        {"popc.b32", each<[](U32 a) -> U32 { return std::popcount(a); }>},
        {"popc.b64", each<[](U64 a) -> U32 { return std::popcount(a); }>},
        {"bfe.s32", each<[](S32 a, U32 at, U32 n) -> S32 { return field(a, at, n); }>},
        {"bfe.u32", each<[](U32 a, U32 at, U32 n) -> U32 { return field(a, at, n); }>},
        // Numbers.
        {"abs.f32", each<[](float a) -> float { return std::fabs(a); }>},
        {"abs.ftz.f32", each<[](float a) -> float { return std::fabs(flushed(a)); }>},
        {"neg.f32", each<[](U32 a) -> U32 { return a ^ 0x80000000u; }>},
        {"add.f32", each<[](float a, float b) -> float { return a + b; }>},
        {"add.rn.f32", each<[](float a, float b) -> float { return a + b; }>},
        {"sub.f32", each<[](float a, float b) -> float { return a - b; }>},
        {"sub.rn.f32", each<[](float a, float b) -> float { return a - b; }>},
        {"mul.f32", each<[](float a, float b) -> float { return a * b; }>},
        {"mul.rn.f32", each<[](float a, float b) -> float { return a * b; }>},
        {"mul.rn.ftz.f32", each<[](float a, float b) -> float { return flushed(flushed(a) * flushed(b)); }>},
        {"fma.rn.f32", each<[](float a, float b, float c) -> float { return std::fma(a, b, c); }>},
        {"fma.rn.ftz.f32", each<[](float a, float b, float c) -> float {
           return flushed(std::fma(flushed(a), flushed(b), flushed(c)));
         }>},
        {"div.full.f32", each<[](float a, float b) -> float { return a / b; }>},
        {"div.rn.f32", each<[](float a, float b) -> float { return a / b; }>},
        {"max.f32", each<[](float a, float b) -> float { return largest(a, b); }>},
        {"min.f32", each<[](float a, float b) -> float { return smallest(a, b); }>},
        {"max.NaN.f32", each<[](float a, float b) -> float { return nan_or(a, b, largest(a, b)); }>},
        {"min.NaN.f32", each<[](float a, float b) -> float { return nan_or(a, b, smallest(a, b)); }>},
        {"sqrt.rn.f32", each<[](float a) -> float { return std::sqrt(a); }>},
        {"ex2.approx.f32", each<[](float a) -> float { return off(std::exp2(a), a); }>},
        {"ex2.approx.ftz.f32", each<[](float a) -> float { return ex2(a); }>},
        {"lg2.approx.ftz.f32", each<[](float a) -> float { return lg2(a); }>},
        {"rcp.approx.ftz.f32", each<[](float a) -> float { return rcp(a); }>},
        {"rsqrt.approx.ftz.f32", each<[](float a) -> float { return rsqrt(a); }>},
        {"sub.f16", each<[](Half a, Half b) -> Half { return float(a) - float(b); }>},
        {"add.f64", each<[](double a, double b) -> double { return a + b; }>},
        {"sub.f64", each<[](double a, double b) -> double { return a - b; }>},
        {"mul.f64", each<[](double a, double b) -> double { return a * b; }>},
        {"div.rn.f64", each<[](double a, double b) -> double { return a / b; }>},
        {"fma.rn.f64", each<[](double a, double b, double c) -> double { return std::fma(a, b, c); }>},
        // Conversions.
        {"cvt.u16.u32", converted<U16, U32>},
        {"cvt.u16.u64", converted<U16, U64>},
        {"cvt.u32.u16", converted<U32, U16>},
        {"cvt.u32.u64", converted<U32, U64>},
        {"cvt.u64.u16", converted<U64, U16>},
        {"cvt.u64.u32", converted<U64, U32>},
        {"cvt.s64.s32", converted<S64, S32>},
        {"cvt.rn.f32.s32", converted<float, S32>},
        {"cvt.rn.f32.s64", converted<float, S64>},
        {"cvt.rn.f32.u32", converted<float, U32>},
        {"cvt.rn.f64.s64", converted<double, S64>},
        {"cvt.rzi.s32.f32", each<[](float a) -> S32 { return saturated<S32>(std::trunc(a)); }>},
        {"cvt.rzi.s64.f32", each<[](float a) -> S64 { return saturated<S64>(std::trunc(a)); }>},
        {"cvt.rzi.s64.f64", each<[](double a) -> S64 { return saturated<S64>(std::trunc(a)); }>},
        {"cvt.rni.ftz.s32.f32", each<[](float a) -> S32 { return saturated<S32>(std::nearbyint(flushed(a))); }>},
        {"cvt.rmi.ftz.f32.f32", each<[](float a) -> float { return std::floor(flushed(a)); }>},
        {"cvt.f64.f32", each<[](float a) -> double { return a; }>},
        {"cvt.rn.f32.f64", each<[](double a) -> float { return a; }>},
        {"cvt.f32.f16", each<[](Half a) -> float { return a; }>},
        {"cvt.f32.bf16", each<[](Bfloat a) -> float { return a; }>},
        {"cvt.rn.f16.f32", each<[](float a) -> Half { return a; }>},
        {"cvt.rn.bf16.f32", each<[](float a) -> Bfloat { return a; }>},
        {"cvt.rn.f16x2.f32", each<[](float high, float low) -> U32 {
           return bits_of(Half(high)) << 16 | bits_of(Half(low));
         }>},
        {"cvt.rn.bf16x2.f32", each<[](float high, float low) -> U32 {
           return bits_of(Bfloat(high)) << 16 | bits_of(Bfloat(low));
         }>},
        // Predicates.
        {"and.pred", logic<[](U32 a, U32 b) -> U32 { return a & b; }>},
        {"or.pred", logic<[](U32 a, U32 b) -> U32 { return a | b; }>},
        {"xor.pred", logic<[](U32 a, U32 b) -> U32 { return a ^ b; }>},
        {"not.pred", logic<[](U32 a) -> U32 { return ~a; }>},
        {"setp.eq.b16", compare<[](U16 a, U16 b) { return a == b; }>},
        {"setp.ne.b16", compare<[](U16 a, U16 b) { return a != b; }>},
        {"setp.eq.b32", compare<[](U32 a, U32 b) { return a == b; }>},
        {"setp.ne.b32", compare<[](U32 a, U32 b) { return a != b; }>},
        {"setp.eq.b64", compare<[](U64 a, U64 b) { return a == b; }>},
        {"setp.ne.b64", compare<[](U64 a, U64 b) { return a != b; }>},
        {"setp.lt.s32", compare<[](S32 a, S32 b) { return a < b; }>},
        {"setp.le.s32", compare<[](S32 a, S32 b) { return a <= b; }>},
        {"setp.gt.s32", compare<[](S32 a, S32 b) { return b < a; }>},
        {"setp.ge.s32", compare<[](S32 a, S32 b) { return a >= b; }>},
        {"setp.lt.u32", compare<[](U32 a, U32 b) { return a < b; }>},
        {"setp.gt.u32", compare<[](U32 a, U32 b) { return b < a; }>},
        {"setp.lt.s64", compare<[](S64 a, S64 b) { return a < b; }>},
        {"setp.le.s64", compare<[](S64 a, S64 b) { return a <= b; }>},
        {"setp.gt.s64", compare<[](S64 a, S64 b) { return b < a; }>},
        {"setp.ge.s64", compare<[](S64 a, S64 b) { return a >= b; }>},
        {"setp.gt.u64", compare<[](U64 a, U64 b) { return b < a; }>},
        {"setp.lt.u64", compare<[](U64 a, U64 b) { return a < b; }>},
        {"setp.eq.f32", compare<[](float a, float b) { return a == b; }>},
        {"setp.ne.f32", compare<[](float a, float b) { return a < b || b < a; }>},
        {"setp.neu.f32", compare<[](float a, float b) { return !(a == b); }>},
        {"setp.lt.f32", compare<[](float a, float b) { return a < b; }>},
        {"setp.le.f32", compare<[](float a, float b) { return a <= b; }>},
        {"setp.gt.f32", compare<[](float a, float b) { return b < a; }>},
        {"setp.ge.f32", compare<[](float a, float b) { return a >= b; }>},
        {"setp.ltu.f32", compare<[](float a, float b) { return !(a >= b); }>},
        {"setp.leu.f32", compare<[](float a, float b) { return !(a > b); }>},
        {"setp.gtu.f32", compare<[](float a, float b) { return !(a <= b); }>},
        {"setp.geu.f32", compare<[](float a, float b) { return !(a < b); }>},
        {"setp.nan.f32", compare<[](float a, float b) { return std::isnan(a) || std::isnan(b); }>},
        {"setp.num.f32", compare<[](float a, float b) { return !(std::isnan(a) || std::isnan(b)); }>},
        {"setp.le.f64", compare<[](double a, double b) { return a <= b; }>},
        {"setp.ne.f64", compare<[](double a, double b) { return a < b || b < a; }>},
        {"setp.equ.f64", compare<[](double a, double b) { return !(a < b || b < a); }>},
        // Memory.
        {"ld.param.b32", load_parameter<U32>},
        {"ld.param.s32", load_parameter<S32>},
        {"ld.param.b64", load_parameter<U64>},
        {"ld.global.b16", load<Space::GLOBAL, U16>},
        {"ld.global.b32", load<Space::GLOBAL, U32>},
        {"ld.global.b64", load<Space::GLOBAL, U64>},
        {"st.global.b16", store<Space::GLOBAL, U16>},
        {"st.global.b32", store<Space::GLOBAL, U32>},
        {"st.global.b64", store<Space::GLOBAL, U64>},
        {"ld.shared.b8", load<Space::SHARED, uint8_t>},
        {"ld.shared.b16", load<Space::SHARED, U16>},
        {"ld.shared.b32", load<Space::SHARED, U32>},
        {"ld.shared.s32", load<Space::SHARED, S32>},
        {"ld.shared.b64", load<Space::SHARED, U64>},
        {"st.shared.b8", store<Space::SHARED, uint8_t>},
        {"st.shared.b16", store<Space::SHARED, U16>},
        {"st.shared.b32", store<Space::SHARED, U32>},
        {"st.shared.b64", store<Space::SHARED, U64>},
        {"ld.local.b32", load<Space::LOCAL, U32>},
        {"st.local.b32", store<Space::LOCAL, U32>},
        {"cp.async.ca.shared.global", copy, copy_operands({4, 8, 16})},
        {"cp.async.cg.shared.global", copy, copy_operands({16})},
        {"cp.async.commit_group", commit_copies, ""},
        {"cp.async.wait_group", wait_for_copies, "n"},
        // Matrices.
        {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", warp_product<Bfloat>},
        {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", warp_product<Half>},
        {"fence.proxy.async.shared::cta", proxy_fence, ""},
        {"wgmma.fence.sync.aligned", nothing, ""},
        {"wgmma.commit_group.sync.aligned", commit_products, ""},
        {"wgmma.wait_group.sync.aligned", wait_for_products, "n"},
    };
    add_tiles<1>(rows), add_tiles<2>(rows), add_tiles<4>(rows);
    for (int n = 8; n <= 256; n += 8) {
      std::string shape = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + "k16.f32.";
      rows.push_back({shape + "bf16.bf16", group_product<Bfloat>, group_operands(n)});
      rows.push_back({shape + "f16.f16", group_product<Half>, group_operands(n)});
    }
    return rows;
  }();
  return known;
}

}  // namespace

Handler handler(int opcode) {
  static const Opcode* rows = table().data();
  return rows[opcode].handler;
}

extern "C" {

int ptx_count() { return table().size(); }

const char* ptx_name(int opcode) { return table()[opcode].name.c_str(); }

const char* ptx_operands(int opcode) { return table()[opcode].operands.c_str(); }

// Ends behind the first CTA with faults; those beyond `room`, and repeated ones, are counted only.
long ptx_run(const Instruction* program, int length, const Operand* operands, Launch* launch, Fault* faults,
             long room) {
  functions = launch->functions;
  return Machine{program, length, operands, *launch, faults, room}.run_grid();
}
}

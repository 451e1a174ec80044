// What machine.py hands over: instructions and their operands, a launch, and the faults that come back.
#pragma once

#include <cstdint>

constexpr int LANES = 32;

// These are laid out alike in machine.py.
struct Operand {
  int64_t value;  // of an immediate; displacement of an address
  int32_t place;  // of a register in the file of its warp, in bytes; -1: there is none
  int32_t bytes;  // of that register, a lane; 0: a predicate
  int32_t group;  // which operand of the instruction: a and b of {a, b}, c are of groups 0, 0 and 1
};
struct Instruction {
  int32_t opcode, first, count, guard, is_negated, target;  // operands first … first + count - 1; guard: a place or -1
};
struct Fault {
  const char* what;
  int32_t instruction, other, warp, lane;  // other: the instruction that it collides with, or -1
  uint32_t cta[3];
  uint64_t address;
};
struct Range {
  uint64_t low, high;
};
struct Launch {
  uint32_t grid[3];
  int32_t warps, register_bytes, shared_bytes, local_bytes, functions, n_ranges;
  uint64_t seed, budget, spent;  // budget and spent: instructions of all its warps together
  const uint64_t* parameters;
  const Range* ranges;
};

// Where `%tid.x` and the like lie at the beginning of a register file, 32 bits a lane, in the order of machine.py.
enum Special { TID_X, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, LANEID, N_SPECIAL };
constexpr int SPECIAL_BYTES = N_SPECIAL * LANES * 4;

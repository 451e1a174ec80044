// A GPU as PTX sees it, one CTA at a time: warps of 32 lanes, their registers, memory, barriers and copies.
//
// A warp runs until it waits or is preempted, so any interleaving of warps can be played. What a program may not do is
// told as a Fault, and the run goes on: accesses out of bounds or misaligned, shared memory that is read before it is
// written or raced for between two barriers, copies read before they are waited for, barriers that some lanes miss.
//
// Programs are not trusted. What an instruction names, its operands and where it goes, the parser has checked against
// the `Form` of its opcode, and nothing here checks it again; what it computes, an address or a size, is checked here.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "layout.h"

constexpr uint32_t EVERY = 0xffffffffu;
// Registers and shared memory before they are written: NaN as float32, as float64 and as two numbers of 16 bits.
constexpr uint64_t POISON = 0x7ff87fff7fff7fffull;
// Of a warp: groups of copies, or of products, that are committed and not waited for; and places that products read,
// of which the largest product has some four thousand.
constexpr size_t MOST_GROUPS = 1 << 10, MOST_READS = 1 << 20;

// Two bytes of shared memory: who touched them since the last barrier.
struct Cell {
  int32_t write_epoch = -1, writer = -1, written_at = -1;
  int32_t read_epoch = -1, read_at = -1;
  uint32_t readers = 0;
  uint32_t copies = 0;    // on their way here
  uint32_t products = 0;  // of a warp group that still read this
  uint64_t written = 0;   // the clock of the last store, 0 of a copy
};

struct Copy {
  uint32_t to;
  int32_t bytes, at;
  std::array<unsigned char, 16> data;
};

// What an accumulator of a warp group will hold, and in which committed group of products.
struct Promise {
  int group;
  std::array<uint32_t, LANES> values;
};

struct Group {
  int32_t next;
  uint32_t lanes;
};

enum class State { RUNS, WAITS, ENDED };

struct Warp {
  int32_t index = 0, next = 0, at = 0;  // at: the instruction in progress
  uint32_t active = EVERY;
  State state = State::RUNS;
  std::vector<Group> parked;  // lanes that took another branch
  std::vector<unsigned char> registers, local;
  std::array<uint32_t, LANES> carry{};
  std::vector<Copy> copies;                 // not committed
  std::vector<std::vector<Copy>> committed;
  int n_groups = 0;                         // of products, committed
  std::map<int32_t, Promise> promised;      // by the register's place
  std::vector<uint32_t> read;               // cells, by products that are not committed
  std::vector<std::vector<uint32_t>> read_by_groups;
  size_t n_reads = 0;                       // in both
  uint64_t fenced = 0;                      // the clock of the last proxy fence
  int32_t fence_epoch = -1;

  template <class T> T* lanes(int32_t place) { return reinterpret_cast<T*>(registers.data() + place); }
};

// Whether bytes from an offset on lie in a memory of so many; no sum can wrap.
inline bool is_within(uint64_t offset, uint64_t bytes, uint64_t size) {
  return bytes <= size && offset <= size - bytes;
}

struct Machine;
using Handler = void (*)(Machine&, Warp&, const Instruction&);
Handler handler(int opcode);

struct Machine {
  const Instruction* program;
  int32_t length;
  const Operand* operands;
  Launch& launch;
  Fault* faults;
  long room, n_told = 0, n_faults = 0;  // told: each once for an instruction
  uint32_t cta[3];
  int32_t epoch = 0;
  uint64_t clock = 0;
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  std::vector<Cell> cells;
  std::array<unsigned char, 64> nowhere{};

  const Operand& operand(const Instruction& x, int i) const { return operands[x.first + i]; }

  uint32_t lanes_of(Warp& warp, const Instruction& x) const {
    if (x.guard < 0) return warp.active;
    uint32_t guard = *warp.lanes<uint32_t>(x.guard);
    return warp.active & (x.is_negated ? ~guard : guard);
  }

  void fault(const Warp& warp, int lane, const char* what, uint64_t address, int32_t other = -1) {
    n_faults++;
    auto is_same = [&](const Fault& known) { return known.what == what && known.instruction == warp.at; };
    if (n_told == room || std::any_of(faults, faults + n_told, is_same)) return;
    faults[n_told++] = {what, warp.at, other, warp.index, lane, {cta[0], cta[1], cta[2]}, address};
  }

  // All lanes of the warp go through these together.
  bool is_whole(Warp& warp, uint32_t lanes) {
    if (lanes == EVERY) return true;
    fault(warp, 0, "not all lanes take part", lanes);
    return false;
  }

  // Global memory.

  unsigned char* global(Warp& warp, int lane, uint64_t address, int bytes) {
    if (address % bytes) fault(warp, lane, "misaligned global access", address);
    for (int i = 0; i < launch.n_ranges; i++)
      if (is_within(address - launch.ranges[i].low, bytes, launch.ranges[i].high - launch.ranges[i].low))
        return reinterpret_cast<unsigned char*>(address);
    fault(warp, lane, "global access outside of the arguments", address);
    nowhere.fill(0xff);
    return nowhere.data();
  }

  unsigned char* local(Warp& warp, int lane, uint64_t address, int bytes) {
    if (is_within(address, bytes, launch.local_bytes)) return &warp.local[lane * size_t(launch.local_bytes) + address];
    fault(warp, lane, "local access out of bounds", address);
    nowhere.fill(0xff);
    return nowhere.data();
  }

  // Shared memory.

  bool fits(Warp& warp, int lane, uint64_t address, int bytes) {
    if (address % bytes) fault(warp, lane, "misaligned shared access", address);
    if (is_within(address, bytes, launch.shared_bytes)) return true;
    fault(warp, lane, "shared access out of bounds", address);
    return false;
  }

  void note_read(Warp& warp, int lane, uint32_t address, int bytes) {
    for (uint32_t i = address / 2; i < (address + bytes + 1) / 2; i++) {
      Cell& cell = cells[i];
      if (cell.copies) fault(warp, lane, "read of a copy that was not waited for", 2 * i, cell.written_at);
      else if (cell.write_epoch < 0) fault(warp, lane, "read of shared memory that nothing wrote", 2 * i);
      if (cell.write_epoch == epoch && cell.writer != warp.index)
        fault(warp, lane, "race: read of what another warp wrote", 2 * i, cell.written_at);
      if (cell.read_epoch != epoch) cell.read_epoch = epoch, cell.readers = 0;
      cell.readers |= 1u << warp.index;
      cell.read_at = warp.at;
    }
  }

  void note_write(Warp& warp, int lane, uint32_t address, int bytes, bool changes) {
    for (uint32_t i = address / 2; i < (address + bytes + 1) / 2; i++) {
      Cell& cell = cells[i];
      if (cell.copies) fault(warp, lane, "write where a copy is on its way", 2 * i, cell.written_at);
      if (cell.products) fault(warp, lane, "write of what a product still reads", 2 * i, cell.read_at);
      if (changes && cell.read_epoch == epoch && (cell.readers & ~(1u << warp.index)))
        fault(warp, lane, "race: write of what another warp read", 2 * i, cell.read_at);
      if (changes && cell.write_epoch == epoch && cell.writer != warp.index)
        fault(warp, lane, "race: write of what another warp wrote", 2 * i, cell.written_at);
      cell.write_epoch = epoch, cell.writer = warp.index, cell.written_at = warp.at;
    }
  }

  const unsigned char* shared_read(Warp& warp, int lane, uint64_t address, int bytes) {
    if (!fits(warp, lane, address, bytes)) return nowhere.fill(0xff), nowhere.data();
    note_read(warp, lane, address, bytes);
    return &shared[address];
  }

  void shared_write(Warp& warp, int lane, uint64_t address, int bytes, const void* data) {
    if (!fits(warp, lane, address, bytes)) return;
    // To write what is there already is no race: lanes that hold the same number may all store it.
    note_write(warp, lane, address, bytes, std::memcmp(&shared[address], data, bytes) != 0);
    for (uint32_t i = address / 2; i < (address + bytes + 1) / 2; i++) cells[i].written = clock;
    std::memcpy(&shared[address], data, bytes);
  }

  // Asynchronous copies: their destination is NaN until the warp waits, and theirs alone until the next barrier.

  void copy(Warp& warp, int lane, uint64_t to, uint64_t from, int bytes, uint32_t taken) {
    Copy copy{uint32_t(to), bytes, warp.at, {}};
    if (taken > uint32_t(bytes)) return fault(warp, lane, "a copy of more than its size", taken);
    if (taken) std::memcpy(copy.data.data(), global(warp, lane, from, taken), taken);
    if (!fits(warp, lane, to, bytes)) return;
    note_write(warp, lane, to, bytes, true);
    Cell* first = &cells[to / 2];
    // A fault is noted, and copies that nobody waits for are no more than shared memory holds.
    if (std::any_of(first, first + bytes / 2, [](const Cell& cell) { return cell.copies; })) return;
    for (int i = 0; i < bytes / 2; i++) first[i].copies++;
    std::memset(&shared[to], 0xff, bytes);
    warp.copies.push_back(copy);
  }

  void commit_copies(Warp& warp) {
    if (warp.committed.size() == MOST_GROUPS) return fault(warp, 0, "copies that nothing waits for", MOST_GROUPS);
    warp.committed.push_back(std::move(warp.copies));
    warp.copies.clear();
  }

  void wait_for_copies(Warp& warp, size_t open) {
    while (warp.committed.size() > open) {
      for (const Copy& copy : warp.committed.front()) {
        for (uint32_t i = copy.to / 2; i < (copy.to + copy.bytes) / 2; i++) {
          Cell& cell = cells[i];
          cell.copies--, cell.written = 0;
          cell.write_epoch = epoch, cell.writer = warp.index, cell.written_at = copy.at;
        }
        std::memcpy(&shared[copy.to], copy.data.data(), copy.bytes);
      }
      warp.committed.erase(warp.committed.begin());
    }
  }

  // Products of a warp group read shared memory by another proxy: between a store and them there is a fence, of the
  // warp that stored or, behind a barrier, of their own. Their accumulators are NaN until they are waited for.

  void product_reads(Warp& warp, uint32_t address, int bytes) {
    if (warp.n_reads >= MOST_READS) return fault(warp, 0, "products that nothing waits for", warp.n_reads);
    for (uint32_t i = address / 2; i < (address + bytes) / 2; i++) {
      Cell& cell = cells[i];
      bool is_fenced = cell.written < warps[std::max(cell.writer, 0)].fenced || cell.write_epoch < warp.fence_epoch;
      if (cell.written && !is_fenced)
        fault(warp, 0, "product of what was stored without a proxy fence", 2 * i, cell.written_at);
      cell.products++;
      warp.read.push_back(i), warp.n_reads++;
    }
  }

  // What a register holds once all products are done.
  const uint32_t* pending(Warp& warp, int32_t place) {
    auto found = warp.promised.find(place);
    return found == warp.promised.end() ? warp.lanes<uint32_t>(place) : found->second.values.data();
  }

  void promise(Warp& warp, int32_t place, const uint32_t* values) {
    Promise& promise = warp.promised[place];
    promise.group = warp.n_groups;
    std::copy(values, values + LANES, promise.values.begin());
    std::fill_n(warp.lanes<uint64_t>(place), LANES / 2, POISON);
  }

  void commit_products(Warp& warp) {
    if (warp.read_by_groups.size() == MOST_GROUPS) return fault(warp, 0, "products that nothing waits for", 0);
    warp.read_by_groups.push_back(std::move(warp.read));
    warp.read.clear();
    warp.n_groups++;
  }

  void wait_for_products(Warp& warp, int open) {
    while (warp.read_by_groups.size() > size_t(open)) {
      for (uint32_t i : warp.read_by_groups.front()) cells[i].products--;
      warp.n_reads -= warp.read_by_groups.front().size();
      warp.read_by_groups.erase(warp.read_by_groups.begin());
    }
    for (auto i = warp.promised.begin(); i != warp.promised.end();) {
      if (i->second.group >= warp.n_groups - open) ++i;
      else {
        std::copy(i->second.values.begin(), i->second.values.end(), warp.lanes<uint32_t>(i->first));
        i = warp.promised.erase(i);
      }
    }
  }

  // Warps.

  void start(Warp& warp, int index) {
    warp = Warp{};
    warp.index = index;
    warp.registers.resize(launch.register_bytes);
    warp.local.assign(size_t(launch.local_bytes) * LANES, 0xff);
    for (size_t i = 0; i + 8 <= warp.registers.size(); i += 8) std::memcpy(&warp.registers[i], &POISON, 8);
    const uint32_t* n = launch.grid;
    const uint32_t shared_by_all[] = {0, cta[0], cta[1], cta[2], n[0], n[1], n[2], 0};
    for (int i = 0; i < N_SPECIAL; i++)
      for (int lane = 0; lane < LANES; lane++) {
        uint32_t value = i == TID_X ? index * LANES + lane : i == LANEID ? lane : shared_by_all[i];
        warp.lanes<uint32_t>(i * LANES * 4)[lane] = value;
      }
  }

  // Lanes that went different ways meet again: those behind run first, and wait for nobody who is ahead.
  void meet(Warp& warp) {
    for (size_t i = 0; i < warp.parked.size();) {
      Group& group = warp.parked[i];
      if (!warp.active || group.next < warp.next) {
        Group before{warp.next, warp.active};
        warp.next = group.next, warp.active = group.lanes;
        if (before.lanes) group = before;
        else warp.parked.erase(warp.parked.begin() + i);
        i = 0;
      } else if (group.next == warp.next) {
        warp.active |= group.lanes;
        warp.parked.erase(warp.parked.begin() + i);
      } else i++;
    }
  }

  void branch(Warp& warp, uint32_t lanes, int32_t target) {
    uint32_t others = warp.active & ~lanes;
    if (!lanes) return;
    if (others) warp.parked.push_back({warp.next, others});
    warp.active = lanes, warp.next = target;
  }

  void leave(Warp& warp, uint32_t lanes) {
    warp.active &= ~lanes;
    if (!warp.active && warp.parked.empty()) warp.state = State::ENDED;
  }

  void run(Warp& warp, uint64_t instructions) {
    while (warp.state == State::RUNS && instructions--) {
      if (!warp.parked.empty()) meet(warp);
      warp.at = warp.next;
      clock++;
      const Instruction& x = program[warp.next++];
      handler(x.opcode)(*this, warp, x);
    }
  }

  // Without a seed the warps take turns at barriers; with one, anywhere.
  void run_cta(std::mt19937_64& random) {
    shared.resize(launch.shared_bytes + 8);
    for (size_t i = 0; i + 8 <= shared.size(); i += 8) std::memcpy(&shared[i], &POISON, 8);
    cells.assign(launch.shared_bytes / 2 + 8, Cell{});
    warps.resize(launch.warps);
    epoch = 0, clock = 1;
    for (int i = 0; i < launch.warps; i++) start(warps[i], i);
    for (;;) {
      std::vector<Warp*> running;
      for (Warp& warp : warps)
        if (warp.state == State::RUNS) running.push_back(&warp);
      if (!running.empty()) {
        const uint64_t left = launch.budget - launch.spent - (clock - 1);
        if (!left) return fault(warps[0], 0, "no end in sight", launch.budget);
        size_t chosen = launch.seed ? random() % running.size() : 0;
        run(*running[chosen], launch.seed ? std::min<uint64_t>(left, 1 + random() % 500) : left);
        continue;
      }
      long waiting = std::count_if(warps.begin(), warps.end(), [](const Warp& w) { return w.state == State::WAITS; });
      if (!waiting) return;
      if (waiting < launch.warps) fault(warps[0], 0, "a barrier that some warps never reach", waiting);
      epoch++;
      for (Warp& warp : warps)
        if (warp.state == State::WAITS) warp.state = State::RUNS;
    }
  }

  long run_grid() {
    const uint32_t* n = launch.grid;
    std::mt19937_64 random(launch.seed);
    std::vector<uint64_t> order(uint64_t(n[0]) * n[1] * n[2]);
    std::iota(order.begin(), order.end(), 0);
    if (launch.seed) std::shuffle(order.begin(), order.end(), random);
    for (uint64_t i : order) {
      cta[0] = i % n[0], cta[1] = i / n[0] % n[1], cta[2] = i / n[0] / n[1];
      run_cta(random);
      launch.spent += clock - 1;
      if (n_faults) break;
    }
    return n_faults;
  }
};

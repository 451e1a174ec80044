"""Loops of a kernel's machine code (`nvdisasm -c`), and the instructions of one pass through each.

The main loop is the natural loop that issues least per turn among those with at least a turn's matrix work; an unrolled
loop counts as its turns. On sm_100 one thread issues the products (UTCHMMA) for the whole CTA and their names have no
size: loops are recognised by the depth of their products.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

LABEL = re.compile(r"^([.$\w]+):")
INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*"  # address; braces group dual issue
    r"(?:@(?P<predicate>!?U?P[\dT]+)\s+)?"
    r"(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
)
TARGET = re.compile(r"(?P<condition>.*?)`\((?P<label>[.$\w]+)\)")
# Multiply-accumulates of one warp: rows × columns × depth of the tile in the name.
WARP_TILES = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "1684": 16 * 8 * 4}
GROUP_TILE = re.compile(r"^HGMMA\.(\d+)x(\d+)x(\d+)")
WARPS_OF_A_GROUP = 4
# The depth of 16-bit factors in one instruction of the tensor cores of sm_100.
TENSOR_DEPTH = 16
# Products of warps, of warp groups, and of one thread for a CTA.
MATRIX = ("HMMA", "HGMMA", "UTCHMMA")
COPIES_LEFT = re.compile(r"\bDEPBAR\.LE SB0, (0x[0-9a-f]+)")
# The main loop does at least this fraction of a turn's matrix work.
FULL_TURN = 0.9


@dataclass(frozen=True)
class Instruction:
    """The name of an instruction without its predicate, its branch target, and whether it can fall through."""

    opcode: str
    target: str | None
    falls_through: bool


@dataclass(frozen=True)
class Loop:
    """Instructions that one pass through all blocks of a loop issues per warp: opcode → count."""

    blocks: frozenset[int]
    opcodes: Mapping[str, int]

    @property
    def issued(self) -> int:
        return sum(self.opcodes.values())

    def count(self, *families: str) -> int:
        """Count instructions whose name, up to the first dot, is one of `families`."""
        return sum(count for opcode, count in self.opcodes.items() if opcode.split(".", maxsplit=1)[0] in families)

    @property
    def matrix_work(self) -> float:
        """Return the multiply-accumulates of the matrix instructions of one warp."""
        return sum(count * matrix_work(opcode) for opcode, count in self.opcodes.items())

    @property
    def matrix_depth(self) -> int:
        """Return the sum of the depths of the products on the tensor cores of sm_100."""
        return TENSOR_DEPTH * self.count("UTCHMMA")


def matrix_work(opcode: str) -> float:
    """Return the multiply-accumulates that one warp contributes to a matrix instruction, 0 for other instructions."""
    if group := GROUP_TILE.match(opcode):
        rows, columns, depth = map(int, group.groups())
        return rows * columns * depth / WARPS_OF_A_GROUP
    family, _, rest = opcode.partition(".")
    return WARP_TILES.get(rest.split(".")[0], 0) if family == "HMMA" else 0


def parse(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions of a listing in order, and the index of the first instruction after each label."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if found := LABEL.match(line):
            labels[found[1]] = len(instructions)
        elif found := INSTRUCTION.match(line):
            instructions.append(_instruction(found["predicate"], found["opcode"], found["operands"]))
    return instructions, labels


def _instruction(predicate: str | None, opcode: str, operands: str) -> Instruction:
    family = opcode.split(".", maxsplit=1)[0]
    branch = TARGET.match(operands) if family in ("BRA", "JMP") else None
    is_certain = predicate in (None, "PT", "UPT") and not (branch and branch["condition"].strip())
    ends = family in ("BRA", "JMP", "BRX", "EXIT", "RET") and opcode != "BRA.DIV"
    return Instruction(opcode, branch["label"] if branch else None, not (ends and is_certain))


def loops_and_whole(text: str) -> tuple[list[Loop], Loop]:
    """Return every loop of a kernel, and all reachable code as one loop with one pass."""
    instructions, labels = parse(text)
    blocks, successors = _blocks(instructions, labels)

    def counted(body: Iterable[int]) -> Loop:
        return Loop(frozenset(body), Counter(instructions[i].opcode for block in body for i in blocks[block]))

    return [counted(body) for body in _natural_loops(successors).values()], counted(_dominators(successors))


def _innermost(found: list[Loop]) -> list[Loop]:
    """Return the loops that contain no other loop."""
    return [loop for loop in found if not any(other.blocks < loop.blocks for other in found)]


def _blocks(
    instructions: list[Instruction], labels: Mapping[str, int]
) -> tuple[dict[int, range], dict[int, tuple[int, ...]]]:
    """Return the basic blocks by the index of their first instruction, with their successors."""
    end = len(instructions)
    after_jumps = {i + 1 for i, x in enumerate(instructions) if x.target is not None or not x.falls_through}
    starts = sorted(({0} | set(labels.values()) | after_jumps) - {end})
    blocks = {start: range(start, stop) for start, stop in zip(starts, [*starts[1:], end], strict=True)}
    successors = {}
    for start, block in blocks.items():
        last = instructions[block[-1]]
        following = [labels[last.target]] if last.target is not None and last.target in labels else []
        if last.falls_through:
            following.append(block.stop)
        successors[start] = tuple(i for i in following if i in blocks)
    return blocks, successors


def _natural_loops(successors: Mapping[int, Iterable[int]]) -> dict[int, set[int]]:
    """Return the blocks of the loop of every header, a block that dominates one of its predecessors."""
    dominators = _dominators(successors)
    predecessors: dict[int, list[int]] = {block: [] for block in dominators}
    for block in dominators:
        for following in successors[block]:
            predecessors[following].append(block)
    bodies: dict[int, set[int]] = {}
    for header in dominators:
        ends = [block for block in predecessors[header] if header in dominators[block]]
        if ends:
            body, queue = {header}, ends
            while queue:
                block = queue.pop()
                if block not in body:
                    body.add(block)
                    queue += predecessors[block]
            bodies[header] = body
    return bodies


def _dominators(successors: Mapping[int, Iterable[int]]) -> dict[int, set[int]]:
    """Return the dominators of each block reachable from block 0, itself included."""
    reached, queue = {0}, [0]
    while queue:
        for following in successors[queue.pop()]:
            if following not in reached:
                reached.add(following)
                queue.append(following)
    dominators = {block: set(reached) for block in reached}
    dominators[0] = {0}
    is_changing = True
    while is_changing:
        is_changing = False
        for block in sorted(reached - {0}):
            before = [dominators[other] for other in reached if block in successors[other]]
            now = {block}.union(set.intersection(*before))
            is_changing |= now != dominators[block]
            dominators[block] = now
    return dominators


@dataclass(frozen=True)
class MainLoop:
    """The main loop of a kernel, and the number of source turns in one pass through it."""

    loop: Loop
    turns: float


def main_loop(text: str, work_per_turn: float, depth_per_turn: int = 0) -> MainLoop:
    """Find the main loop; see the module's docstring.

    work_per_turn: multiply-accumulates of one warp in a turn. 0: a kernel without matrix products, whose main loop is
    the
    innermost loop with the most instructions. depth_per_turn: sum of the depths of a turn's products, for sm_100.
    """
    found, whole = loops_and_whole(text)
    if not work_per_turn:
        return MainLoop(max(_innermost(found), key=lambda loop: loop.issued, default=whole), 1.0)
    if whole.matrix_depth:
        # Exact, because a loop over half of the blocks has nearly the same depth.
        required = least = float(depth_per_turn)
        done = [float(loop.matrix_depth) for loop in found]
    else:
        required, least = work_per_turn, FULL_TURN * work_per_turn
        done = [loop.matrix_work for loop in found]
    candidates = [
        MainLoop(loop, max(1.0, round(work / required)))
        for loop, work in zip(found, done, strict=True)
        if work >= least
    ]
    if not candidates:
        what = "depths" if whole.matrix_depth else "multiply-accumulates"
        raise ValueError(f"no loop does the {required:g} {what} of a turn; those found do {sorted(done)}")
    return min(candidates, key=lambda candidate: candidate.loop.issued / candidate.turns)


def matrix_loops(text: str) -> list[Loop]:
    """Return the innermost loops with matrix instructions by address, which is the order of the source."""
    found = [loop for loop in loops_and_whole(text)[0] if loop.count(*MATRIX)]
    return sorted(_innermost(found), key=lambda loop: min(loop.blocks))


@cache
def _graph(text: str) -> tuple[list[Instruction], dict[int, range], dict[int, tuple[int, ...]], dict[int, set[int]]]:
    """Return instructions, blocks, successors and dominators of a kernel. Cached, because each loop needs them."""
    instructions, labels = parse(text)
    blocks, successors = _blocks(instructions, labels)
    return instructions, blocks, successors, _dominators(successors)


def copies_ahead(text: str, loop: Loop) -> float | None:
    """Return the number of iterations between the asynchronous copy of a block and its use.

    It is the number of groups of copies that may be pending after the wait of an iteration, divided by the number of
    groups that an iteration starts. Return None if there are no asynchronous copies.
    """
    _, blocks, _, _ = _graph(text)
    within = {i for block in loop.blocks for i in blocks[block]}
    lines = [line for line in text.splitlines() if INSTRUCTION.match(line) and not LABEL.match(line)]
    waits = [found for i in within if (found := COPIES_LEFT.search(lines[i]))]
    groups = loop.count("LDGDEPBAR")
    return min(int(found[1], 16) for found in waits) / groups if waits and groups else None


def guarded(text: str, loop: Loop) -> Loop:
    """Return the instructions that run only if a loop runs, including those of the loop.

    These follow the first block on the way to the loop that a path to the end of the kernel can avoid. A loop on every
    such path has none.
    """
    instructions, blocks, successors, dominators = _graph(text)
    # An early return also ends the kernel, but few blocks precede it.
    to_end = max((dominators[block] for block in dominators if not successors[block]), key=len)
    to_loop = set.intersection(*(dominators[block] for block in loop.blocks))
    if to_loop <= to_end:
        return loop
    entry = min(to_loop - to_end, key=lambda block: len(dominators[block]))
    body = [block for block in dominators if entry in dominators[block]]
    return Loop(frozenset(body), Counter(instructions[i].opcode for block in body for i in blocks[block]))

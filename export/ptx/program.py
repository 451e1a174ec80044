"""PTX as Triton emits it, parsed into instructions with places of registers; what they mean is in opcodes.cpp.

The text is one entry point: declarations, statements that end in semicolons, labels, and blocks of inline PTX whose
braces scope nothing.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LANES = 32
# In the order of `Special` in machine.h.
SPECIAL = ("%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid")
# Bytes of a register of a class, a lane. A predicate is one bit: a word for all lanes.
REGISTER_BYTES = {"rs": 2, "r": 4, "rd": 8, "p": 0}
POINTERS = ("%SP", "%SPL")  # of local memory, which begins at 0
# What says how memory is cached or ordered changes no number.
WITHOUT_MEANING = re.compile(r"\.(?:volatile|nc|relaxed|gpu|v[248]|L1::\w+|L2::\w+)\b")

ENTRY = re.compile(r"\.visible\s+\.entry\s+(?P<name>[\w$]+)\((?P<parameters>[^)]*)\)(?P<directives>[^{]*)\{")
CONSTANT = re.compile(r"\.global\s+\.align\s+\d+\s+\.b8\s+(?P<name>[\w$]+)\[\d+\]\s*=\s*\{(?P<bytes>[^}]*)\};")
REGISTERS = re.compile(r"\.reg\s+\.\w+\s+%(?P<kind>\w+)<(?P<count>\d+)>;")
LOCAL = re.compile(r"\.local\s+\.align\s+\d+\s+\.b8\s+(?P<name>\w+)\[(?P<bytes>\d+)\];")
STATEMENT = re.compile(r"\$[\w$]+:|(?:[^;{}:]|::)*(?:\{[^{}]*\}[^;{}]*)*;")
INSTRUCTION = re.compile(r"(?:@(?P<negated>!?)%p(?P<guard>\d+)\s+)?(?P<opcode>[\w.:]+)\s*(?P<operands>.*)", re.DOTALL)
OPERAND = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|[^,\s][^,]*")
ADDRESS = re.compile(r"\[\s*(?P<base>[%\w$.]+)\s*(?:\+\s*(?P<offset>-?\d+))?\s*\]")
REGISTER = re.compile(r"%(?P<kind>rs|rd|r|p)(?P<index>\d+)")
FLOAT = re.compile(r"0[fFdD](?P<bits>[0-9a-fA-F]+)")


class UnknownPtxError(ValueError):
    """PTX that the emulator cannot read or run."""


class Operand(ctypes.Structure):
    """As in machine.h."""

    _fields_ = (
        ("value", ctypes.c_int64), ("place", ctypes.c_int32), ("bytes", ctypes.c_int32), ("group", ctypes.c_int32),
    )  # fmt: skip


class Instruction(ctypes.Structure):
    """As in machine.h."""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("opcode", "first", "count", "guard", "is_negated", "target"))


@dataclass
class Program:
    """One kernel.

    lines: the text of every instruction; register_bytes: of a warp's file; constants: buffers that the code has
    addresses of.
    """

    name: str
    parameters: list[str]
    warps: int
    register_bytes: int
    local_bytes: int
    lines: list[str]
    instructions: ctypes.Array[Instruction]
    operands: ctypes.Array[Operand]
    constants: list[ctypes.Array[ctypes.c_char]]


# Where a move puts a part that nobody wants.
NOWHERE = Operand(0, -1, 0, 0)


@dataclass
class _Scope:
    """What the names of a kernel stand for. places: of the first register of a class."""

    parameters: list[str]
    places: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=lambda: {"global_smem": 0})

    def operand(self, text: str, group: int) -> Operand:
        if found := REGISTER.fullmatch(text):
            return self._register(found["kind"], int(found["index"]), group)
        if text in SPECIAL:
            return Operand(0, SPECIAL.index(text) * LANES * 4, 4, group)
        if text == "_":
            raise UnknownPtxError("a result that nobody wants")
        if found := ADDRESS.fullmatch(text):
            base = self.operand(found["base"], group)
            base.value += int(found["offset"] or 0)
            return base
        return Operand(self._number(text), -1, 0, group)

    def _register(self, kind: str, index: int, group: int) -> Operand:
        step = REGISTER_BYTES[kind]
        return Operand(0, self.places[kind] + index * (step * LANES or 4), step, group)

    def _number(self, text: str) -> int:
        if text in self.symbols:
            return self.symbols[text]
        if text in self.parameters:
            return self.parameters.index(text)
        if found := FLOAT.fullmatch(text):
            return _signed(int(found["bits"], 16))
        try:
            return _signed(int(text.removesuffix("U"), 0))
        except ValueError:
            raise UnknownPtxError(f"operand {text!r}") from None


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def parse(ptx: str, opcodes: Mapping[str, int]) -> Program:
    """The kernel in a text of PTX.

    Args:
        opcodes: name → number of every instruction that can be run.

    Raises:
        UnknownPtxError: there are instructions or operands beyond these; all of them are named.
    """
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", ptx, flags=re.DOTALL)
    entry = ENTRY.search(text)
    if entry is None:
        raise UnknownPtxError("no entry point")
    body = text[entry.end() : text.rindex("}")]
    scope = _Scope([part.split()[-1] for part in entry["parameters"].split(",") if part.strip()])
    constants = _declare(scope, text, body)
    register_bytes = scope.places["end"]
    instructions, operands, lines = _assemble(scope, body, opcodes)
    warps = int(_found(r"\.reqntid\s+(\d+)", entry["directives"])) // LANES
    local_bytes = max((int(found["bytes"]) for found in LOCAL.finditer(body)), default=0)
    return Program(
        entry["name"], scope.parameters, warps, register_bytes, local_bytes, lines,
        (Instruction * len(instructions))(*instructions), (Operand * max(1, len(operands)))(*operands), constants,
    )  # fmt: skip


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise UnknownPtxError(f"nothing like {pattern!r}")
    return found[1]


def _declare(scope: _Scope, text: str, body: str) -> list[ctypes.Array[ctypes.c_char]]:
    """Places of registers, 8 bytes aligned, and addresses of symbols; the constants among them."""
    end = len(SPECIAL) * LANES * 4
    for found in REGISTERS.finditer(body):
        step = REGISTER_BYTES[found["kind"]] * LANES or 4
        scope.places[found["kind"]] = end
        end += -(-step * int(found["count"]) // 8) * 8
    scope.places["end"] = end
    scope.symbols |= {found["name"]: 0 for found in LOCAL.finditer(body)}
    constants = []
    for found in CONSTANT.finditer(text):
        values = bytes(int(value) for value in found["bytes"].split(","))
        constants.append(ctypes.create_string_buffer(values, len(values)))
        scope.symbols[found["name"]] = ctypes.addressof(constants[-1])
    return constants


def _statements(body: str) -> Iterator[str]:
    """Labels with their colon and instructions without their semicolon; declarations and lone braces left out."""
    without = re.sub(r"^\s*(?:\.(?!\w+:)[^\n]*|[{}])\s*$", "", body, flags=re.MULTILINE)
    for found in STATEMENT.finditer(without):
        statement = found[0].strip().removesuffix(";").strip()
        if statement:
            yield statement


def _assemble(
    scope: _Scope, body: str, opcodes: Mapping[str, int]
) -> tuple[list[Instruction], list[Operand], list[str]]:
    instructions: list[Instruction] = []
    operands: list[Operand] = []
    lines: list[str] = []
    labels: dict[str, int] = {}
    branches: dict[int, str] = {}
    unknown: dict[str, str] = {}
    for statement in _statements(body):
        if statement.endswith(":"):
            labels[statement[:-1]] = len(instructions)
            continue
        found = INSTRUCTION.fullmatch(statement)
        if found is None:
            raise UnknownPtxError(f"statement {statement!r}")
        texts = OPERAND.findall(found["operands"])
        if texts and texts[0] in POINTERS:
            continue  # 0, as everywhere
        opcode = found["opcode"] if "." not in found["opcode"] else WITHOUT_MEANING.sub("", found["opcode"])
        if opcode not in opcodes:
            unknown[opcode] = statement
            continue
        if opcode.startswith("bra"):
            branches[len(instructions)], texts = texts[0], []
        first = len(operands)
        try:
            for group, text in enumerate(texts):
                parts = [part.strip() for part in text[1:-1].split(",")] if text.startswith("{") else [text.strip()]
                is_move = opcode.startswith("mov.")
                operands += [
                    NOWHERE if is_move and part == "_" else scope.operand("0" if part in POINTERS else part, group)
                    for part in parts
                ]
        except UnknownPtxError as error:
            unknown[str(error)] = statement
            continue
        guard = -1 if found["guard"] is None else scope.operand(f"%p{found['guard']}", 0).place
        count = len(operands) - first
        instructions.append(Instruction(opcodes[opcode], first, count, guard, bool(found["negated"]), -1))
        lines.append(" ".join(statement.split()))
    if unknown:
        raise UnknownPtxError("; ".join(f"{what} in {statement!r}" for what, statement in unknown.items()))
    for index, label in branches.items():
        instructions[index].target = labels[label]
    return instructions, operands, lines

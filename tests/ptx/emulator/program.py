"""PTX as Triton emits it, parsed into instructions with places of registers; what they mean is in opcodes.cpp.

The text is one entry point: declarations, statements that end in semicolons, labels, and blocks of inline PTX whose
braces scope nothing.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.ptx.emulator.operands import LANES, POINTERS, Opcode, Operand, Scope, UnknownPtxError

# What says how memory is cached or ordered changes no number.
WITHOUT_MEANING = re.compile(r"\.(?:volatile|nc|relaxed|gpu|v[248]|L1::\w+|L2::\w+)\b")

COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
ENTRY = re.compile(r"\.visible\s+\.entry\s+(?P<name>[\w$]+)\((?P<parameters>[^(){}]*)\)(?P<directives>[^(){}]*)\{")
CONSTANT = re.compile(r"\.global\s+\.align\s+\d+\s+\.b8\s+(?P<name>[\w$]+)\[\d+\]\s*=\s*\{(?P<bytes>[\d,\s]*)\};")
REGISTERS = re.compile(r"\.reg\s+\.\w+\s+%(?P<kind>\w+)<(?P<count>\d+)>;")
LOCAL = re.compile(r"\.local\s+\.align\s+\d+\s+\.b8\s+(?P<name>\w+)\[(?P<bytes>\d+)\];")
DIRECTIVE = re.compile(r"^[ \t]*\.(?!\w+:)[^\n]*$", re.MULTILINE)
# Before an instruction: labels, and braces of inline PTX, which scope nothing.
LEADING = re.compile(r"\s*(?:(?P<label>\$[\w$]+):|[{}])")
INSTRUCTION = re.compile(r"(?:@(?P<negated>!?)(?P<guard>%p\d+)\s+)?(?P<opcode>[\w.:]+)\s*(?P<operands>.*)", re.DOTALL)
OPERAND = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|[^,\s][^,]*")
# What takes a label.
TO_LABEL = (((1, "l"),),)


class Instruction(ctypes.Structure):
    """As in layout.h."""

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


def parse(ptx: str, opcodes: Mapping[str, Opcode]) -> Program:
    """The kernel in a text of PTX.

    Args:
        opcodes: by name, all that can be run.

    Raises:
        UnknownPtxError: there are instructions or operands beyond these, all of which are named.
    """
    text = COMMENT.sub("", ptx)
    entry, end = ENTRY.search(text), text.rfind("}")
    if entry is None or end < entry.end():
        raise UnknownPtxError("no entry point")
    body = text[entry.end() : end]
    names = [part.split()[-1] for part in entry["parameters"].split(",") if part.strip()]
    scope = Scope({name: index for index, name in enumerate(names)})
    constants = _declare(scope, text, body)
    warps = _warps(entry["directives"])
    local_bytes = max((int(found["bytes"]) for found in LOCAL.finditer(body)), default=0)
    instructions, operands, lines = _assemble(scope, body, opcodes)
    return Program(
        entry["name"], names, warps, scope.end, local_bytes, lines,
        (Instruction * len(instructions))(*instructions), (Operand * max(1, len(operands)))(*operands), constants,
    )  # fmt: skip


def _warps(directives: str) -> int:
    found = re.search(r"\.reqntid\s+(\d+)", directives)
    threads = int(found[1]) if found else 0
    if threads % LANES or not threads:
        raise UnknownPtxError(f"a CTA of {threads} threads")
    return threads // LANES


def _declare(scope: Scope, text: str, body: str) -> list[ctypes.Array[ctypes.c_char]]:
    """Registers, and addresses of symbols; the constants among them."""
    for found in REGISTERS.finditer(body):
        scope.declare(found["kind"], int(found["count"]))
    scope.symbols |= {found["name"]: 0 for found in LOCAL.finditer(body)}
    constants = []
    for found in CONSTANT.finditer(text):
        values = bytes(map(int, found["bytes"].split(",")))
        constants.append(ctypes.create_string_buffer(values, len(values)))
        scope.symbols[found["name"]] = ctypes.addressof(constants[-1])
    return constants


def _statements(body: str) -> Iterator[tuple[list[str], str]]:
    """Instructions without their semicolon, each with the labels before it; declarations and lone braces left out."""
    labels = []
    for part in DIRECTIVE.sub("", body).split(";"):
        start = 0
        while found := LEADING.match(part, start):
            start = found.end()
            labels += [found["label"]] if found["label"] else []
        if statement := part[start:].strip():
            yield labels, statement
            labels = []


def _assemble(
    scope: Scope, body: str, opcodes: Mapping[str, Opcode]
) -> tuple[list[Instruction], list[Operand], list[str]]:
    instructions: list[Instruction] = []
    operands: list[Operand] = []
    lines: list[str] = []
    labels: dict[str, int] = {}
    branches: dict[int, str] = {}
    unknown: dict[str, str] = {}
    for before, statement in _statements(body):
        labels |= dict.fromkeys(before, len(instructions))
        found = INSTRUCTION.fullmatch(statement)
        if found is None:
            raise UnknownPtxError(f"statement {statement!r}")
        texts = OPERAND.findall(found["operands"])
        if texts and texts[0] in POINTERS:
            continue  # 0, as everywhere
        name = found["opcode"] if "." not in found["opcode"] else WITHOUT_MEANING.sub("", found["opcode"])
        if name not in opcodes:
            unknown[name] = statement
            continue
        opcode, first = opcodes[name], len(operands)
        try:
            operands += scope.operands(opcode, texts)
            guard = -1 if found["guard"] is None else scope.operand("rp", found["guard"])[1]
        except UnknownPtxError as error:
            unknown[str(error)] = statement
            continue
        if opcode.forms == TO_LABEL:
            branches[len(instructions)] = texts[0].strip()
        count = len(operands) - first
        instructions.append(Instruction(opcode.number, first, count, guard, bool(found["negated"]), -1))
        lines.append(" ".join(statement.split()))
    for index, label in branches.items():
        instructions[index].target = labels[label]
    if unknown:
        raise UnknownPtxError("; ".join(f"{what} in {statement!r}" for what, statement in unknown.items()))
    return instructions, operands, lines

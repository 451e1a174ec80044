"""Operands of instructions: what an opcode takes, as its `Form` in lanes.h says it, and what their texts stand for.

An opcode with several forms takes the first whose operands fit: their number, kinds and widths.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

LANES = 32
# In the order of `Special` in layout.h.
SPECIAL = ("%tid.x", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid")
# Bytes of a register of a class, a lane. A predicate is one bit: a word for all lanes.
REGISTER_BYTES = {"rs": 2, "r": 4, "rd": 8, "p": 0}
POINTERS = ("%SP", "%SPL")  # of local memory, which begins at 0

LABEL = re.compile(r"\$[\w$]+")
ADDRESS = re.compile(r"\[\s*(?P<base>[%\w$.]+)\s*(?:\+\s*(?P<offset>-?\d{1,10}))?\s*\]")
REGISTER = re.compile(r"%(?P<kind>rs|rd|r|p)(?P<index>\d+)")
FLOAT = re.compile(r"0[fF](?P<single>[0-9a-fA-F]{8})|0[dD](?P<double>[0-9a-fA-F]{16})")


class UnknownPtxError(ValueError):
    """PTX that the emulator cannot read or run."""


class Operand(ctypes.Structure):
    """As in layout.h."""

    _fields_ = (
        ("value", ctypes.c_int64), ("place", ctypes.c_int32), ("bytes", ctypes.c_int32), ("group", ctypes.c_int32),
    )  # fmt: skip


@dataclass(frozen=True)
class Opcode:
    """An instruction that can be run. forms: any of them; of each operand, how many parts of which kind."""

    number: int
    forms: tuple[tuple[tuple[int, str], ...], ...]

    @classmethod
    def of(cls, number: int, words: str) -> Self:
        """From the words of a `Form`."""

        def counted(word: str) -> tuple[int, str]:
            count, _, kind = word.rpartition("x")
            return int(count or 1), kind

        return cls(number, tuple(tuple(map(counted, form.split())) for form in words.split("|")))


@dataclass
class Scope:
    """What the names of a kernel stand for.

    parameters: their positions; files: of each class of registers the place of the first; end: of all registers,
    bytes of a warp.
    """

    parameters: dict[str, int]
    files: dict[str, int] = field(default_factory=dict)
    end: int = len(SPECIAL) * LANES * 4
    symbols: dict[str, int] = field(default_factory=lambda: {"global_smem": 0, **dict.fromkeys(POINTERS, 0)})

    def declare(self, kind: str, count: int) -> None:
        """Registers of a class, 8 bytes aligned."""
        self.files[kind] = self.end
        self.end += -(-_step(kind) * count // 8) * 8

    def operands(self, opcode: Opcode, texts: Sequence[str]) -> list[Operand]:
        """Of an instruction, the parts of all its operands in turn.

        Raises:
            UnknownPtxError: they are none that the opcode takes.
        """
        parts = [_parts(text.strip()) for text in texts]
        shape = [len(group) for group in parts]
        refusal = UnknownPtxError("other operands than it takes")
        for form in opcode.forms:
            if [count for count, _ in form] != shape:
                continue
            try:
                return [
                    Operand(*self.operand(kind, text), group)
                    for group, (_, kind) in enumerate(form)
                    for text in parts[group]
                ]
            except UnknownPtxError as error:
                refusal = error
        raise refusal

    def operand(self, kind: str, text: str) -> tuple[int, int, int]:
        """Value, place and bytes of a part of a kind, as in layout.h.

        Raises:
            UnknownPtxError: it is of no such kind, or stands for nothing.
        """
        what, width = kind[0], kind[1:]
        if what == "a":
            return self._address(text)
        if what == "c":
            return self._parameter(text)
        if what == "l" and LABEL.fullmatch(text):  # of which a branch knows the instruction
            return 0, -1, 0
        if what == "o" and text == "_":  # a part of a move that nobody wants
            return 0, -1, 0
        found = self._register(text)
        if found is None or what in "n#":
            return self._immediate(what, width, text)
        place, size = found
        if what not in "rR" and place < len(SPECIAL) * LANES * 4:
            raise UnknownPtxError(f"no register to write: {text!r}")
        expected = 0 if width == "p" else int(width)
        if size != expected and not (what in "WR" and size > expected):
            raise UnknownPtxError(f"a register of another width: {text!r}")
        return 0, place, size

    def _immediate(self, what: str, width: str, text: str) -> tuple[int, int, int]:
        if what not in "rRn#":
            raise UnknownPtxError(f"no register to write: {text!r}")
        value = self._number(text)
        if (what == "n" and not 0 <= value < 2**31) or (what == "#" and value != int(width)):
            raise UnknownPtxError(f"a number that it does not take: {text!r}")
        return value, -1, 0

    def _register(self, text: str) -> tuple[int, int] | None:
        """Place and bytes, of a register."""
        if text in SPECIAL:
            return SPECIAL.index(text) * LANES * 4, 4
        found = REGISTER.fullmatch(text)
        if found is None:
            return None
        kind, index = found["kind"], int(found["index"])
        return self.files[kind] + index * _step(kind), REGISTER_BYTES[kind]

    def _address(self, text: str) -> tuple[int, int, int]:
        found = ADDRESS.fullmatch(text)
        if found is None:
            raise UnknownPtxError(f"no address: {text!r}")
        offset, base = int(found["offset"] or 0), self._register(found["base"])
        if base is None:
            return self._number(found["base"]) + offset, -1, 0
        return offset, *base

    def _parameter(self, text: str) -> tuple[int, int, int]:
        found = ADDRESS.fullmatch(text)
        if found is None or found["base"] not in self.parameters or int(found["offset"] or 0):
            raise UnknownPtxError(f"no parameter: {text!r}")
        return self.parameters[found["base"]], -1, 0

    def _number(self, text: str) -> int:
        if text in self.symbols:
            return self.symbols[text]
        if found := FLOAT.fullmatch(text):
            return _signed(int(found["single"] or found["double"], 16))
        try:
            value = int(text.removesuffix("U"), 0)
        except ValueError:
            raise UnknownPtxError(f"operand {text!r}") from None
        return _signed(value)


def _parts(text: str) -> list[str]:
    """a and b of {a, b}."""
    inner = text[1:-1] if text[0] == "{" and text[-1] == "}" else text
    return [part.strip() for part in inner.split(",")]


def _step(kind: str) -> int:
    return REGISTER_BYTES[kind] * LANES or 4


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits

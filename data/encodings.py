"""The encoding of text that is not UTF-8: found by which bytes are valid, and by what letters they would be."""

from __future__ import annotations

import re
from typing import Final

# Bytes that are looked at.
LOOKED_AT: Final = 2**16
NAMES: Final = {
    "cp932": "Shift JIS", "euc_jp": "EUC-JP", "gbk": "GBK", "cp949": "EUC-KR", "cp1250": "Windows-1250",
    "cp1251": "Windows-1251", "koi8_r": "KOI8-R", "cp1253": "Windows-1253", "cp1252": "Windows-1252",
}  # fmt: skip
ASIAN: Final = ("cp932", "euc_jp", "gbk", "cp949")
LETTER: Final = re.compile(r"[\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7a3]")
# Letters that have another beside them, as words have. A misread ä makes single ones.
IN_WORD: Final = re.compile(r"[\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7a3]{2,}")
# Encodings of alphabets without Latin letters, and their most frequent letters.
ALPHABETS: Final = {"cp1251": "оеаинтсрвлк", "koi8_r": "оеаинтсрвлк", "cp1253": "αοιετσνηυρ"}
FOREIGN: Final = re.compile(rb"[\xb5-\xff]{3,}")
ACCENTED: Final = re.compile(rb"[A-Za-z][\xb5-\xff]|[\xb5-\xff][A-Za-z]")
# Hiragana, katakana, and characters of most tables. Text in a wrong encoding has rare characters.
USUAL: Final = re.compile(
    "[\u3041-\u30ff年月日時分秒曜付火水木金土祝午前後令和平成昭円人品名号番数量計合均最高低気温水湿度風雨雪売上店舗客東京都市県電力使用"
    "时间温湿气压电压流功率单价金额销售总平地区编号状态元米站点日期数据记录"
    "일시기온습도지점명량압력전류시간날짜값서울년월분초평균최고저합계금액매출강수풍속구번호상태]"
)
LEAST_LETTERS: Final = 4
# The least share of usual characters.
FEWEST_USUAL: Final = 0.15
MOST_ALONE: Final = 0.2
# Signs inside a word, other than cubic units: they are letters in Windows-1250.
SIGN_IN_WORD: Final = re.compile(r"(?<=[^\W\d_mtn])[¹³¿¼¾¥]")


def decode_other(content: bytes) -> tuple[str, str]:
    """The text of bytes that are not valid UTF-8, and the name of its encoding."""
    part = content[:LOOKED_AT]
    part = part[: part.rfind(b"\n") + 1] or part
    usual = {encoding: _usual(part, encoding) for encoding in ASIAN}
    encoding = max(usual, key=lambda each: usual[each])
    if usual[encoding] < FEWEST_USUAL * len(LETTER.findall(_decode(part, encoding) or "")):
        usual[encoding] = 0
    if not usual[encoding] and len(FOREIGN.findall(part)) > len(ACCENTED.findall(part)):
        encoding = max(
            ALPHABETS, key=lambda each: sum(map(part.decode(each, "replace").lower().count, ALPHABETS[each]))
        )
    elif not usual[encoding]:
        signs = len(SIGN_IN_WORD.findall(part.decode("cp1252", "replace")))
        encoding = "cp1250" if signs and _decode(part, "cp1250") is not None else "cp1252"
    return content.decode(encoding, errors="replace"), NAMES[encoding]


def _count(text: str, letters: str) -> int:
    return sum(map(text.count, letters))


def _usual(part: bytes, encoding: str) -> int:
    """The number of usual characters; 0 if the bytes are not valid, or if their letters stand alone."""
    text = _decode(part, encoding)
    letters = len(LETTER.findall(text or ""))
    if text is None or letters < LEAST_LETTERS:
        return 0
    alone = len(LETTER.findall(USUAL.sub("", IN_WORD.sub("", text))))
    return len(USUAL.findall(text)) if alone <= MOST_ALONE * letters else 0


def _decode(part: bytes, encoding: str) -> str | None:
    try:
        return part.decode(encoding)
    except UnicodeDecodeError:
        return None

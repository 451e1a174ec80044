"""Detect the encoding of text that is not UTF-8. It is the encoding in which the bytes are valid and represent
plausible letters."""

from __future__ import annotations

import re
from typing import Final

# Maximum number of bytes that are examined.
LOOKED_AT: Final = 2**16
NAMES: Final = {
    "cp932": "Shift JIS", "euc_jp": "EUC-JP", "gbk": "GBK", "cp949": "EUC-KR", "cp1250": "Windows-1250",
    "cp1251": "Windows-1251", "koi8_r": "KOI8-R", "cp1253": "Windows-1253", "cp1252": "Windows-1252",
    "cp1254": "Windows-1254",
}  # fmt: skip
ASIAN: Final = ("cp932", "euc_jp", "gbk", "cp949")
LETTER: Final = re.compile(r"[\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7a3]")
# Sequences of letters, as in words. An ä in a Western encoding is decoded to a single letter.
IN_WORD: Final = re.compile(r"[\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7a3]{2,}")
# Encodings of non-Latin alphabets, and the most frequent letters.
ALPHABETS: Final = {"cp1251": "оеаинтсрвлк", "koi8_r": "оеаинтсрвлк", "cp1253": "αοιετσνηυρ"}
FOREIGN: Final = re.compile(rb"[\xb5-\xff]{3,}")
ACCENTED: Final = re.compile(rb"[A-Za-z][\xb5-\xff]|[\xb5-\xff][A-Za-z]")
# Hiragana, katakana, and frequent characters in tables. Text that is decoded with a wrong encoding has rare characters.
USUAL: Final = re.compile(
    "[\u3041-\u30ff年月日時分秒曜付火水木金土祝午前後令和平成昭円人品名号番数量計合均最高低気温水湿度風雨雪売上店舗客東京都市県電力使用"
    "一二三四五六七八九十万亿开盘收手涨跌幅时间温湿气压电压流功率单价金额销售总平地区编号状态元米站点日期数据记录"
    "일시기온습도지점명량압력전류시간날짜값서울년월분초평균최고저합계금액매출강수풍속구번호상태]"
)
LEAST_LETTERS: Final = 4
# Minimum fraction of usual characters.
FEWEST_USUAL: Final = 0.15
MOST_ALONE: Final = 0.2
# Patterns of Polish, Czech, Slovak, Hungarian and South Slavic words that are decoded as Windows-1252: signs inside a
# word other than cubic units; the letters to which ř, č, ě, ů and ň are decoded, next to a vowel or before a letter;
# and the letters to which ő and ű are decoded.
CENTRAL: Final = re.compile(
    r"(?<=[^\W\d_mtn])[¹³¿¼¾¥]|(?<=[aiouyáíóúý])ø|ø(?=[aiuyáíúýì])|[pt]øe|\b[ØÈ](?=[aeiouyáéíóúýì])|"
    r"è(?=[aeiouyáíóúýìù])|\bè(?=\w)|ì(?=\w)|ù(?=[^\W\d_ù])|ò(?=[ioyuíù])|[rd]ã\b|"
    r"\wõ\b|\b[Ii]dõ|[éá]\w*õ(?!e)|õ(?!e)\w*[áéíóú]|[hmb]õ(?!e)\w*[éá]|û\w*õ"
)
TURKISH: Final = re.compile(r"(?<=[^\W\d_])[ðþ]|[ðþ](?=[^\W\d_])")
ICELANDIC: Final = re.compile(r"[áéíóúæ]")


def decode_other(content: bytes) -> tuple[str, str]:
    """Return the text of bytes that are not valid UTF-8, and the name of the encoding."""
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
        text = part.decode("cp1252", "replace")
        encoding = "cp1250" if CENTRAL.search(text) and _decode(part, "cp1250") is not None else "cp1252"
        if encoding == "cp1252" and TURKISH.search(text) and not ICELANDIC.search(text):
            encoding = "cp1254"
    return content.decode(encoding, errors="replace"), NAMES[encoding]


def _count(text: str, letters: str) -> int:
    return sum(map(text.count, letters))


def _usual(part: bytes, encoding: str) -> int:
    """Return the number of frequent characters in the decoded bytes. Return 0 if the bytes are not valid in the
    encoding, or if most letters are not next to other letters."""
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

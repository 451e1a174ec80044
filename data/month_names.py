"""Convert month names in common languages to English, and dates of other calendars to the Gregorian calendar."""

from __future__ import annotations

import re
from datetime import date
from functools import cache
from typing import Any, Final

ENGLISH: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
FULL_ENGLISH: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
# Each language lists the name of each month and its abbreviations without a point. Dates are written with the first
# abbreviation.
LANGUAGES: Final = {
    "en": "january jan,february feb,march mar,april apr,may,june jun,july jul,august aug,september sept sep,"
    "october oct,november nov,december dec",
    "de": "januar jan jän jänner,februar feb feber,märz mär mrz,april apr,mai,juni jun,juli jul,august aug,"
    "september sep sept,oktober okt,november nov,dezember dez",
    "fr": "janvier janv jan,février févr fév fevrier fev,mars,avril avr,mai,juin,juillet juil,août aout,"
    "septembre sept sep,octobre oct,novembre nov,décembre déc decembre dec",
    "es": "enero ene,febrero feb,marzo mar,abril abr,mayo may,junio jun,julio jul,agosto ago,"
    "septiembre sep sept setiembre,octubre oct,noviembre nov,diciembre dic",
    "it": "gennaio gen,febbraio feb,marzo mar,aprile apr,maggio mag,giugno giu,luglio lug,agosto ago,"
    "settembre set sett,ottobre ott,novembre nov,dicembre dic",
    "pt": "janeiro jan,fevereiro fev,março mar marco,abril abr,maio mai,junho jun,julho jul,agosto ago,"
    "setembro set,outubro out,novembro nov,dezembro dez",
    "nl": "januari jan,februari feb,maart mrt,april apr,mei,juni jun,juli jul,augustus aug,september sep sept,"
    "oktober okt,november nov,december dec",
    "pl": "stycznia sty styczeń,lutego lut luty,marca mar marzec,kwietnia kwi kwiecień,maja maj,czerwca cze czerwiec,"
    "lipca lip lipiec,sierpnia sie sierpień,września wrz wrzesień,października paź październik,"
    "listopada lis listopad,grudnia gru grudzień",
    "sv": "januari jan,februari feb,mars mar,april apr,maj,juni jun,juli jul,augusti aug,september sep,oktober okt,"
    "november nov,december dec",
    "da": "januar jan,februar feb,marts mar,april apr,maj,juni jun,juli jul,august aug,september sep,oktober okt,"
    "november nov,december dec",
    "fi": "tammikuu tammi tammikuuta,helmikuu helmi helmikuuta,maaliskuu maalis maaliskuuta,huhtikuu huhti huhtikuuta,"
    "toukokuu touko toukokuuta,kesäkuu kesä kesäkuuta,heinäkuu heinä heinäkuuta,elokuu elo elokuuta,"
    "syyskuu syys syyskuuta,lokakuu loka lokakuuta,marraskuu marras marraskuuta,joulukuu joulu joulukuuta",
    "cs": "ledna led leden,února úno únor,března bře březen,dubna dub duben,května kvě květen,června čvn červen,"
    "července čvc červenec,srpna srp srpen,září zář,října říj říjen,listopadu lis listopad,prosince pro prosinec",
    "hu": "január jan,február febr feb,március márc,április ápr,május máj,június jún,július júl,augusztus aug,"
    "szeptember szept,október okt,november nov,december dec",
    "ro": "ianuarie ian,februarie feb,martie mar,aprilie apr,mai,iunie iun,iulie iul,august aug,septembrie sept,"
    "octombrie oct,noiembrie nov,decembrie dec",
    "tr": "ocak oca,şubat şub,mart mar,nisan nis,mayıs may,haziran haz,temmuz tem,ağustos ağu,eylül eyl,ekim eki,"
    "kasım kas,aralık ara",
    "id": "januari jan,februari feb,maret mar,april apr,mei,juni jun,juli jul,agustus agu agt,september sep,"
    "oktober okt,november nov,desember des",
    "ru": "января янв январь,февраля фев февраль февр,марта мар март,апреля апр апрель,мая май,июня июн июнь,"
    "июля июл июль,августа авг август,сентября сен сентябрь сент,октября окт октябрь,ноября ноя ноябрь нояб,"
    "декабря дек декабрь",
    "uk": "січня січ січень,лютого лют лютий,березня бер березень,квітня кві квітень,травня тра травень,"
    "червня чер червень,липня лип липень,серпня сер серпень,вересня вер вересень,жовтня жов жовтень,"
    "листопада лис листопад,грудня гру грудень",
    "th": "มกราคม ม.ค,กุมภาพันธ์ ก.พ,มีนาคม มี.ค,เมษายน เม.ย,พฤษภาคม พ.ค,มิถุนายน มิ.ย,กรกฎาคม ก.ค,สิงหาคม ส.ค,"
    "กันยายน ก.ย,ตุลาคม ต.ค,พฤศจิกายน พ.ย,ธันวาคม ธ.ค",
    "tw": "",
    "fa": "",
    "ja": ",".join(f"{month}月" for month in range(1, 13)),
}  # fmt: skip
# The year before the first year of each Japanese era, with the latest era first.
ERAS: Final = {"令和": 2018, "平成": 1988, "昭和": 1925}
ERA: Final = re.compile(rf"({'|'.join(ERAS)})(元|\d{{1,2}})年")
YEAR: Final = re.compile(r"(\d{4})年")
# Years of the Buddhist calendar, such as 2567, are 543 years ahead.
BUDDHIST: Final = re.compile(r"(?<!\d)2[45]\d\d(?!\d)")
AHEAD: Final = 543
GREGORIAN: Final = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
# Years of Taiwan's calendar, as in 113/01/31, are 1911 years behind.
MINGUO: Final = re.compile(r"^(\d{2,3})(?=[/-]\d{1,2}[/-]\d{1,2}\b|年)")
BEHIND: Final = 1911
# Dates of the Persian calendar from 1941 to 2041, such as 1402/10/01, and dates of the Gregorian calendar.
PERSIAN: Final = re.compile(r"(?<!\d)(13[2-9]\d|14[01]\d)([-/.])(\d{1,2})\2(\d{1,2})(?!\d)")
YEAR_FIRST: Final = re.compile(r"(?<!\d)(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?!\d)")
# The years in a cycle of 33 years that end with a leap day, and the ordinal, as in `date.toordinal`, of the day before
# the Persian year 0.
LEAP_YEARS: Final = (1, 5, 9, 13, 17, 22, 26, 30)
DAY_BEFORE_PERSIAN: Final = 226_529
# Words between the parts of a date, ordinal signs, and the name of a weekday before the date.
FILLERS: Final = (
    (re.compile(r"(\d) de ([^\W\d_])", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"([^\W\d_]\.?) del? (\d)", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"^(\d{1,2})(?:er|\.|º|ª|st|nd|rd|th) ?([^\W\d_])", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"^[^\W\d_]+\.?,? (\d{1,2} )"), r"\1"),
)
WORD: Final = re.compile(r"([^\W\d_]+)\.?")


@cache
def names(language: str) -> list[list[str]]:
    """Return the names of each month in a language, with the full name first."""
    return [month.split() for month in LANGUAGES[language].split(",")]


def languages_of(cell: str) -> list[str]:
    """Return the languages or calendars that a date may be written in, by the name of its month or by its year."""
    if ERA.search(cell):
        return ["ja"]
    if PERSIAN.match(cell):
        return ["fa"]
    if BUDDHIST.search(cell):
        return ["th"]
    if re.match(r"1[01]\d\D", cell) and MINGUO.match(cell):
        return ["tw"]
    words = {word.lower() for word in re.findall(r"[^\W\d_]+", cell)}
    return [language for language in LANGUAGES if any(words & set(month) for month in names(language))]


def _persian_day(year: int, month: int, day: int) -> int:
    """Return the ordinal of a day of the Persian calendar, as `date.toordinal` counts days."""
    cycles, rest = divmod(year, 33)
    leaps = len(LEAP_YEARS) * cycles + sum(each < rest for each in LEAP_YEARS)
    return DAY_BEFORE_PERSIAN + 365 * year + leaps + 31 * (month - 1) - max(0, month - 7) + day


def _from_persian(found: re.Match[str]) -> str:
    year, month, day = int(found[1]), int(found[3]), int(found[4])
    if not (1 <= month <= 12 and 1 <= day <= (31 if month < 7 else 30)):
        return found[0]
    return f"{date.fromordinal(_persian_day(year, month, day)):%Y{found[2]}%m{found[2]}%d}"


def _to_persian(found: re.Match[str]) -> str:
    moment = date(int(found[1]), int(found[3]), int(found[4]))
    year = moment.year - 621
    year -= moment.toordinal() < _persian_day(year, 1, 1)
    days = moment.toordinal() - _persian_day(year, 1, 1)
    month, day = (days // 31, days % 31) if days < 186 else (6 + (days - 186) // 30, (days - 186) % 30)
    return f"{year}{found[2]}{month + 1:02d}{found[2]}{day + 1:02d}"


@cache
def _english_of(language: str) -> dict[str, str]:
    return {name: english for english, month in zip(ENGLISH, names(language), strict=True) for name in month}


def text_to_english(text: str, language: str) -> str:
    """Return a date with English abbreviations of months and in the Gregorian calendar, without filler words."""
    if language == "ja":
        return ERA.sub(lambda era: f"{ERAS[era[1]] + (1 if era[2] == '元' else int(era[2]))}年", text)
    if language == "tw":
        return MINGUO.sub(lambda year: str(int(year[0]) + BEHIND), text)
    if language == "fa":
        return PERSIAN.sub(_from_persian, text)
    if language == "th":
        text = BUDDHIST.sub(lambda year: str(int(year[0]) - AHEAD), text)
    for pattern, plain in FILLERS:
        text = pattern.sub(plain, text)
    months = _english_of(language)
    return WORD.sub(lambda word: months.get(word[1].lower(), word[0]), text)


def to_english(cells: Any, language: str) -> Any:
    """Return chunked Arrow text with `text_to_english` applied to each cell."""
    import pyarrow as pa

    encoded = cells.combine_chunks().dictionary_encode()
    texts = [None if text is None else text_to_english(text, language) for text in encoded.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string()).take(encoded.indices)])


def from_english(text: str, language: str) -> str:
    """Convert the English month name in a date to another language, or the date to the calendar of that language.

    The name may be abbreviated.
    """
    if language == "ja":
        era, origin = next((era, year) for era, year in ERAS.items() if year < int(YEAR.search(text)[1]))  # type: ignore[index]
        return YEAR.sub(lambda year: f"{era}{int(year[1]) - origin}年", text)
    if language == "tw":
        return GREGORIAN.sub(lambda year: str(int(year[0]) - BEHIND), text, count=1)
    if language == "fa":
        return YEAR_FIRST.sub(_to_persian, text, count=1)
    if language == "th":
        text = GREGORIAN.sub(lambda year: str(int(year[0]) + AHEAD), text)
        if not any(re.search(rf"\b{name}", text) for name in ENGLISH):
            return text
    month = next(k for k, name in enumerate(ENGLISH) if re.search(rf"\b{name}", text))
    full, *short = names(language)[month]
    if re.search(rf"\b{FULL_ENGLISH[month]}\b", text):
        return text.replace(FULL_ENGLISH[month], _like(full, language), 1)
    return text.replace(ENGLISH[month], _like(short[0] if short else full, language), 1)


def _like(name: str, language: str) -> str:
    return name.capitalize() if language in ("en", "de") else name

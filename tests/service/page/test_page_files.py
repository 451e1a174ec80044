"""How the page is delivered: what it weighs, what it may load, and who may have it."""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest

from rfa.service.access.guard import is_open
from rfa.service.assets import assets

pytestmark = pytest.mark.anyio
KEY = "a-key-of-sixteen-or-more"
MOST_BYTES = 250_000


def test_the_whole_page_is_light() -> None:
    assert sum(len(asset.packed) for asset in assets().values()) <= MOST_BYTES


def test_what_is_vendored_brings_its_licence() -> None:
    from importlib.resources import files

    folder = files("rfa.service").joinpath("pages", "vendor", "uplot")
    assert "MIT" in folder.joinpath("LICENSE").read_text()
    version = folder.joinpath("README.md").read_text().split()[1]
    assert f"(v{version})" in folder.joinpath("uPlot.esm.js").read_text()
    assert "vendor/uplot/LICENSE" not in assets()


async def test_files_come_whole_compressed_and_not_twice(connect: Any) -> None:
    async with connect() as client:
        for name, asset in assets().items():
            plain = await client.get(f"/page/{name}", headers={"Accept-Encoding": "identity"})
            packed = await client.get(f"/page/{name}", headers={"Accept-Encoding": "gzip"})
            assert plain.content == packed.content == gzip.decompress(asset.packed)
            assert packed.headers["content-encoding"] == "gzip"
            assert plain.headers["content-type"].partition(";")[0] == asset.media_type.partition(";")[0]
            again = await client.get(f"/page/{name}", headers={"If-None-Match": plain.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")


async def test_nothing_but_its_own_files_may_run(connect: Any) -> None:
    async with connect() as client:
        for path in ("/", "/docs"):
            reply = await client.get(path)
            policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
            assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/html")
            found = re.findall(r'(?:src|href)="([^"]*)"', reply.text)
            assert found and all(re.fullmatch(r"(page/[\w./]+|#\w+|\./|docs|openapi\.json)", one) for one in found)
            for inline in ("<script>", "style=", " onclick=", "@import", "url(", "<style"):
                assert inline not in reply.text


async def test_its_files_and_no_others_need_no_key(connect: Any) -> None:
    async with connect(api_keys=KEY) as client:
        for name in assets():
            assert is_open("GET", f"/page/{name}")
            assert (await client.get(f"/page/{name}")).status_code == 200
        for path in ("/page/", "/page/nope.js", "/page/vendor/uplot/LICENSE", "/page/series.js/"):
            assert (await client.get(path)).status_code == 401, path
            outputs = await client.get(path, headers={"X-API-Key": KEY})
            assert outputs.status_code == 404, path

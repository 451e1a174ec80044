"""Read and write Prometheus remote write 1.0, which consists of protobuf messages in snappy blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import cramjam
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rfa.library.watch.filters import Samples
from rfa.library.watch.selectors import labels_of

MOST_DECOMPRESSED: Final = 64 << 20
HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
# Bits of the NaN that marks the end of a series.
_STALE: Final = np.uint64(0x7FF0000000000002)
# Number, type and label of a field.
_DOUBLE, _INT64, _STRING, _MESSAGE, _ONE, _MANY = 1, 3, 9, 11, 1, 3
_MESSAGES: Final = {
    "Label": (("name", _STRING, _ONE), ("value", _STRING, _ONE)),
    "Sample": (("value", _DOUBLE, _ONE), ("timestamp", _INT64, _ONE)),
    "TimeSeries": (("labels", "Label", _MANY), ("samples", "Sample", _MANY)),
    "WriteRequest": (("timeseries", "TimeSeries", _MANY),),
}


class WireError(ValueError):
    """Raised when a message does not follow the protocol."""


def _write_request() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="rfa/remote_write.proto", package="rfa", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, label) in enumerate(fields, 1):
            one = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                one.type, one.type_name = _MESSAGE, f".rfa.{kind}"
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rfa.WriteRequest"))


WriteRequest: Final = _write_request()


def decompress(body: bytes) -> bytes:
    """Return the content of a snappy block. Its length is checked before it is decompressed.

    Raises:
        WireError: If the body is not a snappy block, or is too large.
    """
    length = shift = 0
    for byte in body[:5]:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    else:
        raise WireError("the body is not a valid snappy block")
    if length > MOST_DECOMPRESSED:
        raise WireError(
            f"the size of the uncompressed body is {length:,} bytes, which exceeds the limit of {MOST_DECOMPRESSED:,}"
        )
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise WireError("the body is not a valid snappy block") from None


def read_write_request(body: bytes) -> list[Samples]:
    """Return the series in a request, with times in seconds. Markers of ended series are left out.

    Raises:
        WireError: If the body is not a valid request.
    """
    try:
        request = WriteRequest.FromString(decompress(body))
    except WireError:
        raise
    except Exception:  # protobuf's DecodeError, whose class depends on the implementation
        raise WireError("the body is not a WriteRequest") from None
    found = []
    for one in request.timeseries:
        values = np.array([sample.value for sample in one.samples], np.float64)
        times = np.array([sample.timestamp for sample in one.samples], np.float64) / 1000
        if len(values) and (stale := values.view(np.uint64) == _STALE).any():
            values, times = values[~stale], times[~stale]
        if len(values):
            found.append(Samples(labels_of({label.name: label.value for label in one.labels}), times, values))
    return found


def write_request(samples: Iterable[tuple[dict[str, str], float, float]]) -> bytes:
    """Return a request with one sample for each series. An item consists of its labels, time in seconds and value."""
    request = WriteRequest()
    for labels, t, value in samples:
        series = request.timeseries.add()
        for name in sorted(labels):
            series.labels.add(name=name, value=labels[name])
        series.samples.add(value=value, timestamp=round(1000 * t))
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))

"""Times of all writings are compared as instants, and what is no time is named."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.readers.columns import task_columns
from dgl_heta.graph.readers.splits import masks_of
from dgl_heta.graph.readers.table_reader import ColumnTable
from dgl_heta.graph.readers.times import instants
from dgl_heta.graph.source import MASKS

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

UTC = dt.timezone.utc
ZONES = (UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(-dt.timedelta(hours=3)))


def writings(instant: dt.datetime) -> list[str]:
    """Ways to write an instant that is given in UTC, at whole seconds."""
    found = []
    for zone in ZONES:
        local = instant.astimezone(zone)
        sign = f"{local:%z}"
        for offset in (sign, sign[:3] + ":" + sign[3:], *(["Z", "z", " UTC", ""] if zone is UTC
                                                          else [])):
            found += [f"{local:%Y-%m-%dT%H:%M:%S}{offset}",
                      f"{local:%Y-%m-%d %H:%M:%S.000}{offset}",
                      f"{local:%Y-%m-%d} {local.hour}:{local:%M:%S}{offset}",
                      f"{local.year}-{local.month}-{local.day}  {local:%H:%M:%S,0}{offset}",
                      f"{local:%Y%m%dT%H%M%S}{offset}"]
            if not local.second:
                found += [f"{local:%Y-%m-%d} {local.hour}:{local:%M}{offset}",
                          f"{local:%Y%m%dT%H%M}{offset}"]
                if not local.minute and offset in ("Z", ""):
                    found += [f"{local:%Y-%m-%dT%H}{offset}"]
    if (instant.hour, instant.minute, instant.second) == (0, 0, 0):
        before = instant - dt.timedelta(days=1)
        found += [f"{instant:%Y-%m-%d}", f"{before:%Y-%m-%d}T24:00Z", f" {instant:%Y-%m-%d} "]
        if instant.day == 1:
            found += [f"{instant:%Y-%m}"]
    return found


def table(directory: Path, column: Any) -> ColumnTable:
    pq.write_table(pa.table({"when": column}), directory / "t.parquet")
    return ColumnTable(directory / "t.parquet")


def split(opened: ColumnTable, rows: int, **how: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """The part of each row, and the record of a split by time of rows that all have a label."""
    masks, record = masks_of({"ratios": [0.5, 0.25, 0.25], "time": "when", **how}, opened,
                             np.zeros(rows, np.int64), "classification", "the split")
    return np.select([masks[name] for name in MASKS], (0, 1, 2), -1), record


@given(st.lists(st.integers(0, 400), min_size=4, max_size=20),
       st.sampled_from([1, 60, 3600, 86400]), st.randoms(use_true_random=False))
def test_any_mixture_of_writings_is_split_as_the_instants_are(
        tmp_path_factory: pytest.TempPathFactory, steps: list[int], unit: int,
        drawn: random.Random) -> None:
    directory = tmp_path_factory.mktemp("t")
    start = dt.datetime(2024, 2, 28, tzinfo=UTC)
    moments = [start + dt.timedelta(seconds=unit * step) for step in steps]
    texts = [drawn.choice(writings(moment)) for moment in moments]
    expected = split(table(directory, [m.timestamp() for m in moments]), len(steps))[0]
    assert split(table(directory, texts), len(steps))[0].tolist() == expected.tolist(), texts


@pytest.mark.parametrize(("values", "kind"), [
    (range(4), None), ([1.5, 2.5, 3.5, 4.5], pa.float32()), (["9", "10", "100", "1e3"], None),
    ([2**63, 2**63 + 1, 2**63 + 2, 2**64 - 1], pa.uint64()),
    # of these a float64 would make two the same
    ([str(1_700_000_000_000_000_000 + i) for i in range(4)], None),
    ([1_700_000_000_000_000_000 + i for i in range(4)], None),
    ([f"1700000000.12345678{i}" for i in range(4)], None),
    ([decimal.Decimal(10)**20 + i for i in range(4)], None),
    (range(4), pa.timestamp("ns")), (range(4), pa.timestamp("s", "Nowhere/Else")),
    (range(4), pa.date32()), ([86_400_000 * i for i in range(4)], pa.date64()),
    (range(-2, 2), pa.timestamp("ms", "UTC")), (range(4), pa.duration("ns")),
    ([f"2024-01-01T00:00:00.00000000{i}" for i in range(4)], None),
    (["0001-01-01", "1677-01-01", "2262-12-31", "9999-12-31"], None),
])
def test_times_of_other_types_keep_all_their_digits(
        tmp_path: Path, values: Any, kind: Any) -> None:
    column = pa.array(list(values), kind)
    assert split(table(tmp_path, column), 4)[0].tolist() == [0, 0, 1, 2]
    back = column.take(pa.array([3, 2, 1, 0]))
    assert split(table(tmp_path, back), 4)[0].tolist() == [2, 1, 0, 0]
    encoded = table(tmp_path, back.dictionary_encode())
    assert split(encoded, 4)[0].tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize(("form", "texts"), [
    ("%d.%m.%Y %H:%M", ["31.01.2024 9:05", "1.2.2024 8:00", "01.02.2024 10:00", "01.01.2025 0:00"]),
    ("%m/%d/%Y %I:%M %p", ["01/02/2024 11:00 AM", "01/02/2024 1:00 PM", "1/3/2024 12:00 AM",
                           "1/3/2024 12:00 PM"]),
    ("%d/%b/%Y:%H:%M:%S %z", ["01/Mar/2024:10:00:00 +0200", "01/Mar/2024:09:00:00 +0000",
                              "01/Mar/2024:08:00:00 -0200", "02/Mar/2024:00:00:00 +0200"]),
    ("%Y%m%d", [20240131, 20240201, 20240202, 20250101]),
])
def test_another_format_is_said(tmp_path: Path, form: str, texts: list) -> None:
    order = [2, 0, 3, 1]
    opened = table(tmp_path, [texts[i] for i in order])
    assert split(opened, 4, time_format=form)[0].tolist() == [[0, 0, 1, 2][i] for i in order]


@pytest.mark.parametrize(("values", "how", "said"), [
    (["2024-01-01", "2023-02-29"], {}, r"t\.parquet, row 2: column 'when' is '2023-02-29'; a time "
                                       "is a number or written .*time_format"),
    (["2024-01-01 24:30"], {}, "row 1: column 'when' is '2024-01-01 24:30'"),
    (["2024-01-01 9:00 PM"], {}, "row 1"), (["01.02.2024"], {}, "row 1"),
    (["2024-13-01"], {}, "row 1"),
    (["2024-01-01T09:00:60"], {}, "row 1"), (["2024-01-01T09:00+25:00"], {}, "row 1"),
    (["2024-01-01", "20240102"], {}, "row 2: column 'when' is '20240102'"),
    (["2024-01-01", ""], {}, "row 2: column 'when' is empty; every labelled node needs a time"),
    ([None, 1], {}, "row 1: column 'when' is empty"), ([float("inf")], {}, "row 1.*is inf"),
    ([dt.time(1)], {}, "column 'when' of .* holds time64.us. values; a time is a date, a"),
    ([[1]], {}, "holds list"), ([b"1"], {}, "holds bytes values"),
    (["31.02.2024"], {"time_format": "%d.%m.%Y"},
     "row 1: column 'when' is '31.02.2024', which is not of 'time_format' '%d.%m.%Y'"),
    (["1.1.2024"], {"time_format": "%d.%m"}, "'time_format' is '%d.%m'; it must .* with a year"),
    (["1.1.2024"], {"time_format": "%Q"}, "codes of Python's strptime"),
    (["2024 CET"], {"time_format": "%Y %Z"}, "without %Z"),
    (["2024-20", "2024-01"], {"time_format": "%Y-%W"}, "weeks with weekdays"),
    (["2024 Mon"], {"time_format": "%Y %a"}, "weeks with weekdays"),
    (["2024-01-01 12:30"], {"time_format": "%Y-%m-%d %I:%M"}, "%I with %p"),
    (["2024"], {"time_format": 3}, "'time_format' is 3; it must be text"),
    ([1.5], {"time_format": "%Y"}, "'time_format' is for text, but column 'when' .* double"),
    (["2024"], {"seed": 1}, "has both 'seed' and 'time'"),
])
def test_what_is_no_time_is_named_with_its_row(
        tmp_path: Path, values: list, how: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split(table(tmp_path, values), len(values), **how)


def test_rows_without_a_label_need_no_time(tmp_path: Path) -> None:
    opened = table(tmp_path, ["2024-01-02", None, "2024-01-01"])
    found = instants(opened, "when", None, np.array([True, False, True]))
    assert found.known.tolist() == [True, False, True]
    assert found.text(0) == "2024-01-02T00:00:00"


POOL = pa.proxy_memory_pool(pa.default_memory_pool())  # for good: whatever is in it needs it


def test_labels_and_a_split_by_time_in_files_take_a_few_bytes_of_memory_a_row(
        tmp_path: Path) -> None:
    """Masks, and flags beside them, whatever classes and times take; Arrow's memory counts."""
    def peak(rows: int) -> int:
        when = pa.array(np.arange(rows)[::-1] * 10**9, pa.timestamp("ns"))
        pq.write_table(pa.table({"when": when, "label": pa.array(np.arange(rows) % 7)}),
                       tmp_path / "t.parquet", row_group_size=1 << 15)
        opened, arrays, before = ColumnTable(tmp_path / "t.parquet"), dict[str, np.ndarray](), (
            POOL.max_memory() or 0)
        tracemalloc.start()
        task_columns(opened, "label", "classification", None, arrays, file=tmp_path / "labels")
        masks, record = masks_of({"ratios": [0.5, 0.25, 0.25], "time": "when"}, opened,
                                 arrays["label"], "classification", "it",
                                 file=tmp_path / "times")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.flatnonzero(masks["test_mask"]).tolist() == [*range(rows // 4)]
        assert record["train"][0] == "1970-01-01T00:00:00"
        return most + (POOL.max_memory() or 0) - before

    default = pa.default_memory_pool()
    pa.set_memory_pool(POOL)
    try:
        few, many = 100_000, 1_000_000
        grown = (peak(many) - peak(few)) / (many - few)
    finally:
        pa.set_memory_pool(default)
    assert grown < 24, f"{grown:.1f} bytes a row"

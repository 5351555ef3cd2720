"""The source MEDS: stays and notes from the events of the Medical Event Data Standard 0.4.

The standard fixes the codes of births and deaths, and nothing of stays and notes: the recipe names their codes. An
event has no time at which it was saved, and what is known by its day may be at 00:00:00 or 23:59:59 (`date_only`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.data.records import canonical_id
from bertrelay.errors import RequestError
from domain.clinical.sources.form import BLOCK_ROWS, FAULT, FILE, ROW, Reject
from domain.clinical.sources.standards import MedsNotes, MedsSource, MedsStays
from domain.clinical.sources.values import Meanings

KEY = ["subject_id", "hadm_id", "time", "code"]
PARTS = "//"
"""Stands between the parts of a code."""


def shards_of(source: MedsSource, *columns: str) -> dict[str, Path]:
    """Finds the shards by their names in the folder.

    Raises RequestError without any, and for one that has not the columns of MEDS, and `columns`.
    """
    folder = Path(source.path)
    files = {str(path.relative_to(folder)): path for path in sorted(folder.glob("data/**/*.parquet"))}
    if not files:
        raise RequestError(f"{folder}: expected the folder of a MEDS data set, found no data/**/*.parquet in it")
    kinds = {"subject_id": pa.types.is_integer, "time": pa.types.is_timestamp, "code": _is_text}
    for path in files.values():
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise RequestError(f"{path} cannot be read as Parquet ({type(error).__name__}); write it again") from None
        for name in (*kinds, *([source.visit] if source.visit else []), *columns):
            if name not in schema.names:
                columns_there = ", ".join(schema.names)
                raise RequestError(
                    f"{path}: expected a column {name!r}, by MEDS 0.4 or the recipe, found {columns_there}"
                )
            kind = schema.field(name).type
            if name in kinds and not kinds[name](kind):
                raise RequestError(f"{path}: expected {name} as MEDS 0.4 has it, found the type {kind}; convert it")
    return files


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _batches(path: Path, columns: list[str]) -> Iterator[pd.DataFrame]:
    """Streams columns of a shard, with `row` from 1."""
    done = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BLOCK_ROWS * 16, columns=columns):
            table = batch.to_pandas(types_mapper=pd.ArrowDtype)
            yield table.assign(**{ROW: range(done + 1, done + len(table) + 1)})
            done += len(table)


def _with_ids(table: pd.DataFrame, visit: str | None) -> pd.DataFrame:
    """Brings the ids into one form; `hadm_id` is empty without a column of visits."""
    visits = [""] * len(table) if visit is None else [canonical_id(value) for value in table[visit].astype(object)]
    return table.assign(
        subject_id=[canonical_id(value) for value in table["subject_id"].astype(object)], hadm_id=visits
    )


class MedsStayReader:
    """Stays from the events of admissions and discharges, with what other events say of their subjects."""

    def __init__(self, source: MedsStays) -> None:
        self._source, self._files = source, shards_of(source)
        self.file = Path(source.path)
        self._until: dict[Any, Any] = {}  # by subject the time of the last event

    def blocks(self, reject: Reject) -> Iterator[pd.DataFrame]:
        """Yields all stays."""
        source, events = self._source, self._events(reject)
        admissions = events[events["kind"] == "admission"]
        discharges = events[events["kind"] == "discharge"].drop_duplicates(KEY)
        once = admissions.drop_duplicates(KEY)
        ends = self._by_visit(once, discharges, reject) if source.visit else _by_time(once, discharges, reject)
        table = admissions[[*KEY, ROW, FILE]].merge(ends, on=KEY, how="left")
        table = table.rename(columns={"time": "admitted_at", "code": "admission_type"})
        if source.visit is None:
            table["hadm_id"] = table["numbered"]
        for name in ("death", "birth"):
            first = events[events["kind"] == name].groupby("subject_id")["time"].min()
            table[{"death": "died_at", "birth": "born"}[name]] = (
                first.reindex(table["subject_id"]).astype(object).to_numpy()
            )
        for name in ("sex", "race", "insurance"):
            codes = events[events["kind"] == name].drop_duplicates("subject_id").set_index("subject_id")["code"]
            table[name] = table["subject_id"].map(codes.map(lambda code: code.rpartition(PARTS)[2]))
        until = {canonical_id(subject): at for subject, at in self._until.items()}
        yield table.drop(columns="numbered").assign(**{FAULT: ""}, followed_until=table["subject_id"].map(until))

    def _events(self, reject: Reject) -> pd.DataFrame:
        """Reads the events with codes that the recipe names, and the last time of each subject."""
        meanings, visit = Meanings(self._source.events(), "code"), self._source.visit
        blocks = []
        for path in self._files.values():
            for table in _batches(path, ["subject_id", "time", "code", *([visit] if visit else [])]):
                latest = table.groupby("subject_id")["time"].max()
                for subject, at in latest.dropna().items():
                    self._until[subject] = max(at, self._until.get(subject, at))
                codes = pd.Series(table["code"].dropna().unique(), dtype=object)
                kinds = dict(zip(codes, meanings.look_up(codes.map(lambda code: (code,))), strict=True))
                table = table.assign(kind=table["code"].astype(object).map(kinds))
                table = _with_ids(table[table["kind"].notna()], visit)
                is_timed = table["time"].notna() | table["kind"].isin(["sex", "race", "insurance"])
                for row in table.loc[~is_timed, ROW]:
                    reject(str(path), row, "an admission, discharge, birth or death without a time")
                blocks.append(table[is_timed].assign(**{FILE: str(path)}))
        events = pd.concat(blocks, ignore_index=True)
        events["time"] = pd.to_datetime(events["time"].astype("datetime64[us]"))
        if not (events["kind"] == "admission").any():
            raise RequestError(
                f"{self.file}: expected events of admissions by the codes in `admission`, found none in "
                f"{len(self._files)} shards. Look for the codes of this data set in metadata/codes.parquet"
            )
        return events.astype({"code": object, "subject_id": object, "hadm_id": object})

    def _by_visit(self, admissions: pd.DataFrame, discharges: pd.DataFrame, reject: Reject) -> pd.DataFrame:
        """Gives each admission the last discharge of its visit."""
        discharges = discharges.sort_values("time", kind="stable")
        key = ["subject_id", "hadm_id"]
        is_last = ~discharges.duplicated(key, keep="last") & (discharges["hadm_id"] != "")
        admitted = pd.MultiIndex.from_frame(admissions[key])
        is_known = pd.Series(pd.MultiIndex.from_frame(discharges[key]).isin(admitted), discharges.index)
        _reject(discharges[~is_known], "a discharge of no admission", reject)
        _reject(discharges[is_known & ~is_last], "a discharge before the last one of its stay", reject)
        ends = discharges[is_known & is_last].rename(columns={"time": "discharged_at", "code": "discharge_location"})
        return (
            admissions[KEY]
            .merge(ends[[*key, "discharged_at", "discharge_location"]], on=key, how="left")
            .assign(numbered="")
        )


def _reject(events: pd.DataFrame, reason: str, reject: Reject) -> None:
    for file, row in zip(events[FILE], events[ROW], strict=True):
        reject(file, row, reason)


def _by_time(admissions: pd.DataFrame, discharges: pd.DataFrame, reject: Reject) -> pd.DataFrame:
    """Gives each admission the subject's next discharge before another admission, and a number as id.

    An admission without one stays open, since the discharge after another admission may be that one's:

        day 1 admission, day 3 discharge      a stay of days 1 to 3
        day 5 admission                       open
        day 7 admission, day 9 discharge      a stay of days 7 to 9
        day 9 discharge, another              rejected: of no admission
    """
    both = pd.concat([admissions.assign(is_end=False), discharges.assign(is_end=True)])
    # At one time a discharge ends the stay before, unless none is open.
    both = both.sort_values(["subject_id", "time", "is_end"], ascending=[True, True, False], kind="stable")
    ends: dict[int, int] = {}
    numbers, lost = defaultdict[str, int](int), list[int]()
    names: dict[int, str] = {}
    subject, waiting, early = None, None, None
    for index, patient, at, is_end in both[["subject_id", "time", "is_end"]].itertuples(name=None):
        if patient != subject:
            lost += [early[0]] if early else []
            subject, waiting, early = patient, None, None
        if is_end and waiting is not None:
            ends[waiting], waiting = index, None
        elif is_end:
            lost += [early[0]] if early else []
            early = (index, at)
        else:
            numbers[patient] += 1
            names[index], waiting = f"{patient}-{numbers[patient]}", index
            if early and early[1] == at:  # a stay that ends as it begins
                ends[index], waiting, early = early[0], None, None
    lost += [early[0]] if early else []
    _reject(discharges.loc[lost], "a discharge of no admission", reject)
    last = pd.Series(ends).reindex(admissions.index)
    ends_of = discharges.reindex(last)
    return admissions[KEY].assign(
        discharged_at=ends_of["time"].to_numpy(),
        discharge_location=ends_of["code"].to_numpy(),
        numbered=pd.Series(names),
    )


class MedsNoteReader:
    """The events with text."""

    def __init__(self, source: MedsNotes) -> None:
        self._source = source
        shards = shards_of(source)
        self.files: Mapping[str, Path] = {
            name: path for name, path in shards.items() if "text_value" in pq.read_schema(path).names
        }
        if not self.files:
            raise RequestError(
                f"{source.path}: expected notes in a column text_value, as MEDS 0.4 has it, found none in "
                f"{len(shards)} shards: these events are codes without text. A cohort can be made of them, and no "
                "model of notes. Give a data set that has the notes as events"
            )

    def blocks(self, table: str, reject: Reject) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Streams the events of a shard that have text."""
        visit, path = self._source.visit, self.files[table]
        for block in _batches(path, ["subject_id", "time", "code", "text_value", *([visit] if visit else [])]):
            notes = _with_ids(block[block["text_value"].notna()], visit)
            yield notes[[ROW, "subject_id", "hadm_id"]].assign(
                **{FILE: str(path), FAULT: ""},
                charted_at=notes["time"].astype("datetime64[us]").astype(object),
                note_type=notes["code"].astype(object),
                text=notes["text_value"].astype(object),
            )

"""The stage `domain.cohort`: stays with their readmission label and split, and the counts of every step.

Writes `cohort.parquet`, a row for each stay that a readmission can follow; `stays.parquet`, those that end in death as
well, for other outcomes, under the same splits; `members.parquet`, the admissions that a stay is made of;
`characteristics.parquet`, demographics and diagnoses of the stays; `flow.csv`, the counts of every step.
"""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_json
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical.admissions import (
    HUANG_WINDOW_DAYS,
    STAY,
    Flow,
    FoundStays,
    default_stays,
    followed_up,
    huang_stays,
    read_admissions,
)
from domain.clinical.mimic import HOSPITAL, ROW, Version, columns_of, read_blocks, tables_of, version_of
from domain.clinical.settings import FLOW, READMISSION, CohortSettings
from domain.sampling import split_of, unit_hash


def write_parquet(path: Path, table: pd.DataFrame | pa.Table) -> None:
    """Writes `table` to `path`, which is whole or not there."""
    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    schema = table.schema
    for number, field in enumerate(schema):  # strings as every reader knows them, times in Parquet's largest unit
        if pa.types.is_large_string(field.type):
            schema = schema.set(number, field.with_type(pa.string()))
        if pa.types.is_timestamp(field.type):
            schema = schema.set(number, field.with_type(pa.timestamp("ms")))
    with atomic_write(path) as building:
        pq.write_table(table.cast(schema.remove_metadata()), building)


SPLITS = ("train", "validation", "test")


CHARACTERISTICS = "characteristics.parquet"
CHARACTERISTIC_COLUMNS = [
    *("hadm_id", "sex", "age", "insurance", "race"),
    *("admission_type", "died_in_hospital", "length_of_stay_days"),
]


def write_characteristics(
    folder: Path, stays: pd.DataFrame, members: pd.DataFrame, diagnoses: Path | None, rejects: Rejects
) -> None:
    """Writes `characteristics.parquet`, a row for each of the stays in their order.

    Columns: hadm_id, sex, age (years, 91 for all over 89), insurance, race, admission_type, died_in_hospital,
    length_of_stay_days, diagnoses (a list of {code, version}, most important first; null where there is no table).
    """
    known = pa.Table.from_pandas(stays[CHARACTERISTIC_COLUMNS], preserve_index=False)
    kind = pa.list_(pa.struct([("code", pa.string()), ("version", pa.int8())]))
    if diagnoses is None:
        log("there is no table diagnoses_icd: characteristics come without diagnoses")
        codes = pa.nulls(len(stays), kind)
    else:
        places = {hadm_id: place for place, hadm_id in enumerate(stays["hadm_id"])}
        admissions = members.assign(admission=range(len(members)), place=members[STAY].map(places))
        # The codes of each stay once: by admission, and by `seq_num`.
        of_stays = _codes(diagnoses, rejects).merge(admissions, on="hadm_id")
        of_stays = of_stays.sort_values(["place", "admission", "seq_num"], kind="stable")
        of_stays = of_stays.drop_duplicates(["place", "code", "version"])
        ends = of_stays["place"].value_counts().reindex(range(len(stays)), fill_value=0).cumsum()
        offsets = pa.array([0, *ends], pa.int32())
        structs = pa.Table.from_pandas(of_stays[["code", "version"]], preserve_index=False).to_struct_array()
        codes = pa.ListArray.from_arrays(offsets, structs.combine_chunks()).cast(kind)
    write_parquet(folder / CHARACTERISTICS, known.append_column("diagnoses", codes))


def _codes(file: Path, rejects: Rejects) -> pd.DataFrame:
    """hadm_id, seq_num, code and version. Codes are text: `0389` is not `389`. MIMIC-III has ICD-9 alone."""
    columns = ["icd_code", "icd_version"] if "icd_version" in columns_of(file) else ["icd9_code"]
    blocks = []
    for rows in read_blocks(file, ["hadm_id", "seq_num", *columns], rejects.add):
        rows = rows.assign(
            code=rows[columns[0]].str.strip(),
            version=pd.to_numeric(rows[columns[1]], errors="coerce") if columns[1:] else 9,
            seq_num=pd.to_numeric(rows["seq_num"], errors="coerce"),
        )
        wrong = (rows["code"] == "") | rows["version"].isna()
        rejects.used(int((~wrong).sum()))
        for row in rows.loc[wrong, ROW].tolist():
            rejects.add(str(file), row, "without a code or its version")
        blocks.append(rows.loc[~wrong, ["hadm_id", "seq_num", "code", "version"]])
    return pd.concat(blocks)


COHORT, STAYS, MEMBERS = "cohort.parquet", "stays.parquet", "members.parquet"
COHORT_FACTS = "cohort.json"
"""`window_days`, within which a return counts."""
OF_EVERY_STAY = ("subject_id", "hadm_id", "admitted_at", "discharged_at", "next_stay_at")
COLUMNS = [*OF_EVERY_STAY, "next_admission_at", "gap_days", "readmitted", "split"]
STAY_COLUMNS = [*OF_EVERY_STAY, "died_at", "died_in_hospital", "length_of_stay_days", "split"]


def write_cohort(settings: CohortSettings, folder: Path) -> Metrics:
    """The stage outside of a recipe: writes into `folder`."""
    return run_alone(run, settings, folder, sensitive=True)


def run(settings: CohortSettings, context: StageContext) -> Metrics:
    """Makes the cohort of a folder of MIMIC's tables; counts of admissions and subjects, and the share that returned.

    Raises RequestError for missing or damaged tables and for an empty cohort, WorkError for too many unusable rows.
    """
    if not context.process_group.is_main:
        return {}
    tables, flow = tables_of(settings.mimic, HOSPITAL), Flow(READMISSION.labels[0])
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        admissions = read_admissions(tables, rejects, flow)
        rejects.check()  # before an empty cohort is reported, whose cause they may be
        stays, cohort, members = make_cohort(admissions, settings, version_of(tables["patients"]), flow)
        members = members[members[STAY].isin(stays["hadm_id"])]
        write_characteristics(context.output, stays, members, tables.get("diagnoses_icd"), rejects)
    write_parquet(context.output / COHORT, cohort[COLUMNS])
    write_parquet(context.output / STAYS, stays[STAY_COLUMNS])
    write_parquet(context.output / MEMBERS, members)
    flow.write(context.output / FLOW)
    window = float(HUANG_WINDOW_DAYS) if settings.rules == "huang2019" else settings.window_days
    write_json(context.output / COHORT_FACTS, {"window_days": window})
    log(f"cohort: {len(cohort):,} index stays; left out by each step: {flow.exclusions() or 'none'}")
    metrics: Metrics = {"admissions": len(cohort), "subjects": cohort["subject_id"].nunique()}
    for split in SPLITS:
        part = cohort[cohort["split"] == split]
        metrics[f"admissions/{split}"] = len(part)
        metrics[f"subjects/{split}"] = part["subject_id"].nunique()
        metrics[f"readmitted_share/{split}"] = float(part["readmitted"].mean()) if len(part) else None
    return metrics


def make_cohort(admissions: pd.DataFrame, settings: CohortSettings, version: Version, flow: Flow) -> FoundStays:
    """The stays and those of the cohort, with split and length, and (hadm_id, stay_hadm_id) of all admissions.

    Raises RequestError when no stay is left in the cohort.
    """
    if settings.rules == "huang2019":
        followed, window_days = huang_stays(admissions, version, flow), float(HUANG_WINDOW_DAYS)
    else:
        followed, window_days = default_stays(admissions, settings, version, flow), settings.window_days
    indexed = followed_up(followed.cohort, admissions, settings.data_end, window_days, flow)
    if indexed.empty:
        left = "; ".join(f"{each.admissions:,} {each.step}" for each in flow.steps)
        raise RequestError(
            f"the cohort is empty. What was left after each step: {left}. "
            "Look at the step that leaves nothing, and at the setting behind it; `minimum_age` needs the table of "
            "patients to be of the same release."
        )
    stays, cohort = (_with_split_and_length(each, settings) for each in (followed.all, indexed))
    if settings.balance_train:  # keeps those that the keyed hash places first
        places = cohort["hadm_id"].map(lambda hadm_id: unit_hash(hadm_id, settings.split_key))
        train = cohort["split"] == "train"
        fewest = int(cohort.loc[train, "readmitted"].value_counts().reindex([True, False], fill_value=0).min())
        rank = places.groupby([cohort["split"], cohort["readmitted"]]).rank(method="first")
        cohort = flow.keep("with as many of either label in train", cohort, ~train | (rank <= fewest))
    for split in SPLITS:
        part = flow.count(split, cohort[cohort["split"] == split])
        flow.count(f"{split}, readmitted", part[part["readmitted"]])
    return FoundStays(stays, cohort, followed.members)


def _with_split_and_length(stays: pd.DataFrame, settings: CohortSettings) -> pd.DataFrame:
    subjects, shares = stays["subject_id"], {"test": settings.test_share, "validation": settings.validation_share}
    splits = {subject: split_of(subject, settings.split_key, shares) for subject in subjects.unique()}
    days = (stays["discharged_at"] - stays["admitted_at"]).dt.total_seconds() / 86_400
    return stays.assign(split=subjects.map(splits), length_of_stay_days=days)

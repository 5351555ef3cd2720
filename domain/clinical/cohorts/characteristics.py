"""What else is known of the stays: for looking at groups of patients, and for tasks other than return."""

from pathlib import Path
from typing import TYPE_CHECKING

from bertrelay.data.records import Rejects
from bertrelay.progress import log
from domain.clinical.cohorts.mimic import ROW, columns_of, read_blocks
from domain.clinical.cohorts.stays import STAY
from domain.clinical.parquet import write_parquet

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHARACTERISTICS = "characteristics.parquet"
COLUMNS = ["hadm_id", "sex", "age", "insurance", "race", "admission_type", "died_in_hospital", "length_of_stay_days"]


def write_characteristics(
    folder: Path, stays: "pd.DataFrame", members: "pd.DataFrame", diagnoses: Path | None, rejects: Rejects
) -> None:
    """Writes `characteristics.parquet`, a row for each of the stays in their order.

    Columns: hadm_id, sex, age (years, 91 for all over 89), insurance, race, admission_type, died_in_hospital,
    length_of_stay_days, diagnoses (a list of {code, version}, most important first; null where there is no table).
    """
    import pyarrow as pa

    known = pa.Table.from_pandas(stays[COLUMNS], preserve_index=False)
    if diagnoses is None:
        log("there is no table diagnoses_icd: characteristics come without diagnoses")
        codes = pa.nulls(len(stays), _list_type())
    else:
        codes = _by_stay(_read(diagnoses, members, rejects), stays["hadm_id"])
    write_parquet(folder / CHARACTERISTICS, known.append_column("diagnoses", codes))


def _list_type() -> "pa.DataType":
    import pyarrow as pa

    return pa.list_(pa.struct([("code", pa.string()), ("version", pa.int8())]))


def _read(file: Path, members: "pd.DataFrame", rejects: Rejects) -> "pd.DataFrame":
    """The codes of the stays, each code of a stay once: by admission, and there by `seq_num`."""
    import pandas as pd

    columns = ["icd_code", "icd_version"] if "icd_version" in columns_of(file) else ["icd9_code"]
    stays = members.assign(admission=range(len(members))).set_index("hadm_id")
    blocks = read_blocks(file, ["hadm_id", "seq_num", *columns], rejects)
    found = pd.concat(
        [_codes(block.rows.to_pandas(), file, rejects).join(stays, "hadm_id", "inner") for block in blocks]
    )
    found = found.sort_values(["admission", "seq_num"], kind="stable")
    return found.drop_duplicates([STAY, "code", "version"])


def _codes(rows: "pd.DataFrame", file: Path, rejects: Rejects) -> "pd.DataFrame":
    """Rows with `code` and `version`. Codes are text: `0389` is not `389`. MIMIC-III has ICD-9 alone, by its name."""
    import pandas as pd

    code = rows["icd_code" if "icd_code" in rows else "icd9_code"].str.strip()
    version = pd.to_numeric(rows["icd_version"], errors="coerce") if "icd_version" in rows else 9
    rows = rows.assign(code=code, version=version, seq_num=pd.to_numeric(rows["seq_num"], errors="coerce"))
    wrong = (rows["code"] == "") | rows["version"].isna()
    for row in rows.loc[wrong, ROW].tolist():
        rejects.add(str(file), row, "without a code or its version")
    return rows.loc[~wrong, ["hadm_id", "seq_num", "code", "version"]]


def _by_stay(codes: "pd.DataFrame", hadm_ids: "pd.Series[str]") -> "pa.Array":
    """The codes as a list for each of `hadm_ids`, empty where there is none."""
    import numpy as np
    import pyarrow as pa

    place = codes[STAY].map({hadm_id: place for place, hadm_id in enumerate(hadm_ids)}).to_numpy(np.int64)
    order = np.argsort(place, kind="stable")
    counts = np.bincount(place, minlength=len(hadm_ids))
    structs = pa.StructArray.from_arrays(
        [
            pa.array(codes["code"].to_numpy()[order], pa.string()),
            pa.array(codes["version"].to_numpy()[order].astype(np.int8)),
        ],
        ["code", "version"],
    )
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, structs)

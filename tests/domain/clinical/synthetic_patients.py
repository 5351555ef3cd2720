"""Synthetic stays with notes, as the stages of cohort and notes write them."""

import numpy as np
import pandas as pd

from domain.clinical.notes import TEXT_SCHEMA
from domain.clinical.stage_files import write_parquet

HARMLESS = ["The wound is dry.", "Slept well.", "Ate all of the lunch.", "Walked with the nurse.", "Labs were drawn."]
TELLING = "The failing heart came back again."


def text_of(generator, returns, sentences):
    """Sentences under two headers; the telling one stands anywhere among them, and only where there is a return."""
    chosen = [str(entry) for entry in generator.choice(HARMLESS, sentences)]
    if returns:
        chosen.insert(int(generator.integers(0, sentences)), TELLING)
    middle = len(chosen) // 2
    return f"Hospital Course:\n{' '.join(chosen[:middle])}\nPlan:\n{' '.join(chosen[middle:])}"


def stays(count=240, seed=0):
    """Two stays of each subject; half of all are followed by a return, and one note in ten says otherwise."""
    generator = np.random.default_rng(seed)
    returned = generator.random(count) < 0.5
    hinted = returned ^ (generator.random(count) < 0.1)
    texts = [text_of(generator, bool(hints), int(generator.integers(3, 25))) for hints in hinted]
    split = np.array(["train", "train", "validation", "test"])[np.arange(count) // 2 % 4]
    return pd.DataFrame(
        {
            "hadm_id": [f"{100_000 + n}" for n in range(count)],
            "subject_id": [f"{n // 2}" for n in range(count)],
            "text": texts,
            "n_notes": 1,
            "split": split,
            "readmitted": returned,
            "hinted": hinted,
        }
    )


def write_stays(folder, table):
    """`notes/` and `cohort/` as their stages write them, and `risk.csv`."""
    import pyarrow as pa

    for name in ("notes", "cohort"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    notes = pa.Table.from_pandas(table[TEXT_SCHEMA.names], schema=TEXT_SCHEMA, preserve_index=False)
    write_parquet(folder / "notes/notes.parquet", notes)
    write_parquet(folder / "cohort/cohort.parquet", table[["subject_id", "hadm_id", "readmitted", "split"]])
    facts = pd.DataFrame(
        {
            "hadm_id": table["hadm_id"],
            "sex": np.array(["F", "M"])[np.arange(len(table)) // 2 % 2],
            "age": 70.0,
            "insurance": [f"QZX{n}" for n in range(len(table))],
            "race": "WHITE",
            "admission_type": "URGENT",
        }
    )
    write_parquet(folder / "cohort/characteristics.parquet", facts)
    risk = pd.DataFrame({"hadm_id": table["hadm_id"], "true_risk": np.where(table["hinted"], 0.9, 0.1)})
    risk.to_csv(folder / "risk.csv", index=False)
    return folder


def write_early_stays(folder, table):
    """`notes/` and `cohort/` with labels of the other tasks: who returns in `stays` dies, and stays long, here."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_stays(folder, table)
    (folder / "notes/notes.json").write_text('{"input": "early", "stays": "all"}')
    ends = table["readmitted"].to_numpy()
    others = np.where(np.arange(len(table)) % 2, 2.0, 5.0)
    facts = table[["subject_id", "hadm_id", "split"]].assign(
        died_in_hospital=ends, length_of_stay_days=np.where(ends, 9.0, others)
    )
    write_parquet(folder / "cohort/stays.parquet", facts)
    in_train = (table["split"] == "train").tolist()
    codes = [
        [("QZX", 9)] + [("4280", 9)] * dies + [("25000", 9)] * (n % 2) + [("4019", 9)] * (n % 3 == 0 and in_train[n])
        for n, dies in enumerate(ends.tolist())
    ]
    codes[0].append(("E8788", 9))  # in one stay alone
    lists = pa.array([[{"code": code, "version": version} for code, version in entry] for entry in codes])
    file = folder / "cohort/characteristics.parquet"
    write_parquet(file, pq.read_table(file).append_column("diagnoses", lists))
    return folder

"""A made-up hospital in the form of MIMIC-III or MIMIC-IV, whose patients return with a known probability."""

from pipelines.samples.hospital.risk import best_auroc, draw_risks
from pipelines.samples.hospital.settings import HospitalSettings
from pipelines.samples.hospital.writing import write_hospital, write_hospitals

__all__ = ["HospitalSettings", "best_auroc", "draw_risks", "write_hospital", "write_hospitals"]

"""Path of the helper modules of these tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # hospital_tables is imported by name

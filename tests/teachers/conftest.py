import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # toy_language is imported by name

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # test_file_commands is imported by name

"""Checks pages with axe-core in headless Chromium: lists faults, and fails on serious ones.

npm pack axe-core && tar xzf axe-core-*.tgz package/axe.min.js
python scripts/check_accessibility.py package/axe.min.js runs/quickstart/report.html
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SERIOUS = {"serious", "critical"}
OPENED = "for (const part of document.querySelectorAll('details')) part.open = true;"
CHECK = (
    "axe.run().then(found => { const list = document.createElement('pre'); list.id = 'axe-faults'; "
    "list.textContent = JSON.stringify(found.violations.map(({id, impact, nodes}) => "
    "({id, impact, nodes: nodes.map(node => node.html)}))); document.body.append(list); });"
)


def browser() -> str | None:
    """The first browser of BROWSERS that is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def faults(page: Path, axe: Path, *, width: int = 1280, is_dark: bool = False) -> list[dict[str, object]]:
    """The faults of a page, with all folded parts open: `id`, `impact` and `nodes`, the HTML of the elements.

    Raises RuntimeError where there is no browser, or axe-core has not run in it.
    """
    program = browser()
    if program is None:
        raise RuntimeError(f"expected a browser, found none of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "page.html")
        script = f"<script>{axe.read_text(encoding='utf-8')}</script><script>{OPENED}{CHECK}</script>"
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
        scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", scheme]
        command = [program, *options, f"--window-size={width},900", "--dump-dom", copy.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = re.search(r'<pre id="axe-faults">(.*?)</pre>', dom, re.DOTALL)
    if listed is None:
        raise RuntimeError(f"{page}: axe-core has not run in {program}")
    return list(json.loads(unescape(listed[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("pages", type=Path, nargs="+")
    arguments = parser.parse_args()
    has_serious = False
    for page in arguments.pages:
        for width, is_dark in ((1280, False), (390, True)):
            found = faults(page, arguments.axe, width=width, is_dark=is_dark)
            print(f"{page}, {width} pixels, {'dark' if is_dark else 'light'}: {len(found)} faults")
            for fault in found:
                print(f"  {fault['impact']}  {fault['id']}", *list(fault["nodes"])[:3], sep="\n    ")
            has_serious |= any(fault["impact"] in SERIOUS for fault in found)
    sys.exit(has_serious)


if __name__ == "__main__":
    main()

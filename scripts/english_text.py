"""Write English sentences of many domains, a sentence a line: WordNet's examples and glosses, and quotations.

    apt-get download wordnet-base fortunes fortunes-min      # on Debian or Ubuntu
    for package in *.deb; do dpkg -x $package packages; done
    python scripts/english_text.py packages DIR

Writes DIR/examples.txt, DIR/glosses.txt and DIR/quotations.txt. WordNet may be used freely, with its copyright notice;
the quotations are of many authors, so look at their copyright file before you publish what you make of them.
"""

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

EXAMPLE = re.compile(r'"([^"]+)"')
END_OF_SENTENCE = re.compile(r'(?<=[.!?])\s+(?=[A-Z"(])')
ATTRIBUTION = re.compile(r"\n\s*--")
LICENSE_LINE = "  "  # the first lines of WordNet's files begin with it


def read_glosses(wordnet: Path) -> Iterator[str]:
    """Yields the gloss of each synset of WordNet, with its examples: `a large cat; "the lion roared"`."""
    for path in sorted(wordnet.glob("data.*")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.startswith(LICENSE_LINE):
                    yield line.partition("|")[2].strip()


def read_quotations(fortunes: Path) -> Iterator[str]:
    """Yields the sentences of quotations, without their authors."""
    for path in sorted(path for path in fortunes.iterdir() if path.is_file() and not path.suffix):
        for quotation in path.read_text(encoding="utf-8", errors="replace").split("\n%\n"):
            yield from END_OF_SENTENCE.split(" ".join(ATTRIBUTION.split(quotation)[0].split()))


def write(path: Path, sentences: Iterable[str]) -> None:
    """Writes the distinct sentences of three words or more."""
    distinct = dict.fromkeys(sentence for sentence in sentences if len(sentence.split()) >= 3)
    path.write_text("".join(f"{sentence}\n" for sentence in distinct), encoding="utf-8")
    print(f"{path}: {len(distinct):,} sentences")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, help="folder of the unpacked packages")
    parser.add_argument("out", type=Path, metavar="DIR")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    glosses = list(read_glosses(options.packages / "usr/share/wordnet"))
    write(options.out / "examples.txt", (example for gloss in glosses for example in EXAMPLE.findall(gloss)))
    write(options.out / "glosses.txt", (re.split(r';\s*"', gloss)[0] for gloss in glosses))
    write(options.out / "quotations.txt", read_quotations(options.packages / "usr/share/games/fortunes"))

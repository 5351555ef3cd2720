"""The cases of benchmarks.fuzz that change what users give: translation files, Parquet, graphs, recipes, names, sizes.

Each makes a small input that is right, does something to it, and reads it or runs a command over it.
"""

import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from shutil import copytree

import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.data.parquet import ParquetInput
from bertrelay.data.records import rows
from bertrelay.data.tables import Table
from bertrelay.fingerprint import Digests
from bertrelay.model.encoder import SentenceEncoder
from pipelines.cli import main
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.run.plan import RunOptions, make_plan
from students.parallel.files import read_translation_files
from students.parallel.settings import TranslationFiles

SENTENCES = ["A dog runs.", "Two children play.", "%d of {n} <b>files</b>", "x %" + "0" * 5_000, "a\tb", "é\u2028ü", ""]
HOSTILE = [
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"]]>",
    b"<!ENTITY x SYSTEM '/etc/passwd'>",
    b"&x;",
    b"<" * 5_000,
    b'"' * 999,
]
HOSTILE += [b"charset=punycode", b"charset=utf-16", b"\n" * 9_999, b" " * 99_999, b"(" * 50_000, b"\\", b"\x1b[2J"]
HOSTILE += [b"nplurals=9; plural=n%0;", b"<tu>" * 2_000, b"\xff\xfe", b"\xef\xbb\xbf", b"9" * 5_000, b"{" * 20_000]
NAMES = [
    os.fsdecode(b"bad\xff"),
    "a" * 255,
    "a" * 300,
    "a?b",
    "a b",
    "-x",
    "a*b",
    "a\nb",
    "\u202eabc",
    "a%20b",
    "a\\b",
    ".a",
]
NAMES += ["é", "日本", "a" * 120 + "/" + "b" * 120, "@a", "a'b\"", "~a", "a:b", "${a}", "{each}"]


def damaged(content: bytes, random: Random) -> bytes:
    """`content` cut, or with something that no reader expects put in, over a part of it or in its place."""
    if random.random() < 0.15:
        return content
    place, new = random.randrange(len(content) + 1), random.choice(HOSTILE)
    changed = [content[:place] + new + content[place:], content[:place] + new + content[place + len(new) :]]
    return random.choice([*changed, content[:place], new + content, content[place:]])


def _tmx(random: Random) -> bytes:
    def variant(code: str) -> str:
        return f'<tuv xml:lang="{code}"><seg>{random.choice(["A dog.", "<ph>%s</ph> x", "a &lt;b&gt;"])}</seg></tuv>'

    units = (
        "<tu>" + "".join(map(variant, random.choices(["en", "de", "fr"], k=random.choice([1, 2, 3, 900])))) + "</tu>"
    )
    return f"<tmx><body>{units * random.randint(1, 4)}</body></tmx>".encode()


def _xliff(random: Random) -> bytes:
    unit = "<trans-unit><source>A dog.</source><target state='final'>Ein <g>Hund</g>.</target></trans-unit>"
    head = "<xliff><file source-language='en' target-language='de'>"
    return f"{head}{unit * random.randint(1, 9)}</file></xliff>".encode()


def _po(random: Random) -> bytes:
    head = 'msgid ""\nmsgstr "Language: de\\nContent-Type: text/plain; charset=UTF-8\\n"\n'
    head += '"Plural-Forms: nplurals=2; plural=n!=1;\\n"\n'
    entry = '\nmsgid "A %s"\nmsgid_plural "%d dogs"\nmsgstr[0] "Ein Hund"\nmsgstr[1] "%d Hunde"\n'
    entry += '\n#, fuzzy\nmsgid "x"\nmsgstr "y"\n'
    return (head + entry * random.randint(1, 5)).encode()


def _lines(random: Random) -> bytes:
    return "".join(f"{random.choice(SENTENCES)}\t{random.choice(SENTENCES)}\n" for _ in range(9)).encode()


def translations(folder: Path, random: Random, _: Path) -> None:
    """A translation file, or an archive of some, with damage in it or around it."""
    written = {"a.tmx": _tmx, "a.xlf": _xliff, "de.po": _po, "en-de.tsv": _lines}
    name, write = random.choice(list(written.items()))
    content = damaged(write(random), random)
    if random.random() < 0.3:
        name, content = f"{name}.gz", damaged(gzip.compress(content), random)
    if random.random() < 0.3:
        packed = io.BytesIO()
        method = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
        with zipfile.ZipFile(packed, "w", method) as archive:
            archive.writestr(name, content)
        name, content = "a.zip", damaged(packed.getvalue(), random)
    (folder / name).write_bytes(content)
    settings = {"tags": random.choice(["strip", "skip"]), "placeholders": random.choice(["keep", "skip"])}
    for _record in read_translation_files(
        TranslationFiles.model_validate({"path": str(folder / name), "languages": ["de"], **settings}), None
    ):
        pass


def parquet(folder: Path, random: Random, _: Path) -> None:
    """A Parquet file of odd types, text that is no text, or damaged bytes, read as a table and as a dataset."""
    raw = pa.array([b"A dog.", b"caf\xe9", None], pa.binary())
    texts = [
        pa.array(["A dog.", "", None]),
        pa.array(["A dog.", "b", "c"]),
        pa.Array.from_buffers(pa.string(), 3, raw.buffers()),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([{"text": None}, None, {"text": "x"}]),
        pa.array([["a"], [], None]),
        pa.array([1.5, None, 2]),
    ]
    names = random.choices(["text", "text", "meta.text", "row", "vector", "é", ""], k=random.randint(1, 4))
    table = pa.table([random.choice(texts) for _ in names], names=names)
    pq.write_table(
        table, folder / "a.parquet", compression=random.choice(["none", "snappy", "zstd"]), store_schema=False
    )
    content = (folder / "a.parquet").read_bytes()
    if random.random() < 0.6:
        content = content.replace(b"text", random.choice([b"te\xfft", b"text", b"\0\0\0\0"]))
        place = random.randrange(len(content))
        content = random.choice([content, content[:place], content[:place] + b"\xff\0" + content[place + 2 :]])
    (folder / "a.parquet").write_bytes(content)
    if random.random() < 0.5:
        columns: list[str | int] = ["text", 0, "meta.text"]
        for _row in rows(Table.model_validate({"path": str(folder / "a.parquet")}), [random.choice(columns)]):
            pass
    else:
        for _row in ParquetInput(folder, ["text"], random.choice([[], ["meta.text"]]), ["vector"]).records():
            pass


def graph(folder: Path, random: Random, results: Path) -> None:
    """A model exported to ONNX, of which one file is cut, emptied, damaged, or gone."""
    copytree(results / "graph" / "latest" / "model", folder / "model")
    file = random.choice(sorted(path for path in (folder / "model").rglob("*") if path.is_file()))
    if random.random() < 0.2:
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(
            content[: random.randrange(len(content))] if random.random() < 0.4 else damaged(content, random)
        )
    SentenceEncoder.load(folder / "model", backend="onnx").encode(SENTENCES, precision="fp32")


def recipe(folder: Path, random: Random, _: Path) -> None:
    """A recipe that grows, goes round, or goes deep."""
    count, many = random.choice([3, 20, 60, 500]), json.dumps([f"t{n}" for n in range(random.choice([2, 50, 300]))])
    start = "[s]\nuses = 'samples.write'\n"
    others = ", ".join(f"t{n} = {n}" for n in range(count))
    texts = [
        "[vars]\na0 = 'xx'\n"
        + "".join(f"a{n} = '${{a{n - 1}}}${{a{n - 1}}}'\n" for n in range(1, count))
        + start
        + "x = '${a2}'\n",
        "[vars]\na0 = ['x']\n"
        + "".join(f"a{n} = ['${{a{n - 1}}}', '${{a{n - 1}}}']\n" for n in range(1, count))
        + start,
        start + "".join(f"[s{n}]\nuses = 'samples.write'\nx = '@s{n + random.randint(-2, 2)}'\n" for n in range(count)),
        "".join(f"[s{n}]\nuses = 'bertrelay.encode'\nmodel = '@s{n + 1}'\n" for n in range(count * 4)),
        "[s]\nuses = 'students.evaluate'\nmodel = '/'\n"
        + f"parallel = [{{ path = '{{language}}', others = {{ {others} }}, languages = {many} }}]\n",
        start + "x = " + "[" * count + "]" * count + "\n",
        start + "x = " + "{a = " * count + "1" + "}" * count + "\n",
    ]
    (folder / "r.toml").write_bytes(damaged(random.choice(texts).encode(), random))
    override = random.choice(
        ["vars=1", "vars.a=1", "s=1", "s.uses=1", "seeds=[]", "=", "", "s.x.y.z=1", "a" * 5_000 + "=1"]
    )
    overrides = [override] if random.random() < 0.3 else []
    make_plan(read_recipe(str(folder / "r.toml"), REGISTRY, overrides), RunOptions(runs=folder / "runs"), Digests())


def names(folder: Path, random: Random, results: Path) -> None:
    """A command with the name of an input, an output or a folder that is no usual one."""
    model, name = results / "student" / "latest" / "model", random.choice(NAMES)
    (folder / "lines.txt").write_text("A dog runs.\nTwo children play.\n")
    odd = folder / name
    try:
        odd.with_name(f"{odd.name}.txt").write_text("A dog runs.\n")
    except (OSError, ValueError):
        odd = folder / name
    lines, given = f"{folder}/lines.txt", f"{odd}"
    commands: list[list[object]] = [
        ["encode", model, f"{given}.txt", folder / "o.npy"],
        ["encode", model, lines, f"{given}.npy"],
        ["encode", model, lines, f"{given}.parquet"],
        ["encode", model, f"{folder}/", f"{given}/"],
        ["search", model, f"{given}.txt", "--query", "dog", "--index", folder / "index"],
        ["search", model, lines, "--query", "dog", "--index", given],
        ["mine", model, lines, f"{given}.txt", folder / "o.tsv"],
        ["mine", model, lines, lines, f"{given}.tsv"],
        ["shrink", model, lines, given],
        ["plan", f"{given}.toml"],
        ["plan", "quickstart", "--runs", given],
        ["similarity", model, "--files", lines, f"{given}.txt", "--csv", f"{given}.csv"],
    ]
    _command(random.choice(commands))


def _command(words: Sequence[object]) -> None:
    """Runs a command as a user does. Raises what the command line calls unforeseen as an error of its own."""
    log = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(log):
            main(list(map(str, words)))
    except SystemExit as ended:
        if "unforeseen" in log.getvalue() or ended.code not in (0, 1, 2):
            raise RuntimeError(f"{words[0]}: {log.getvalue()[-200:]}") from None


def sizes(folder: Path, random: Random, results: Path) -> None:
    """An input far larger, longer, wider or deeper than any is meant to be, or without an end."""
    model, size = results / "student" / "latest" / "model", random.choice([10_000, 1 << 20, 70 << 20])
    pipe = folder / "pipe.txt"
    os.mkfifo(pipe)
    inputs: dict[str, Callable[[], bytes]] = {
        "a.txt": lambda: b"x" * size,
        "b.txt": lambda: b"x y " * (size // 4),
        "c.txt": lambda: b"\n" * min(size, 1 << 17),
        "d.jsonl": lambda: b'{"text": "' + b"x" * size + b'"}\n',
        "e.jsonl": lambda: b'{"text": ' + b"[" * min(size, 1 << 20) + b"}\n",
        "f.jsonl": lambda: b'{"a":' * 900 + b"1" + b"}" * 900,
        "g.csv": lambda: b"text," * min(size // 5, 20_000) + b"x\n",
        "h.csv": lambda: b'text\n"' + b"x" * size,
        "i.tsv": lambda: b"text\n" + b"\t" * min(size, 1 << 20),
        "j.txt.gz": lambda: gzip.compress(b"x" * size, 1),
    }
    name, write = random.choice(list(inputs.items()))
    (folder / name).write_bytes(write())
    source = random.choice([folder / name, folder / name, folder / name, pipe, Path("/dev/zero"), Path("/dev/null")])
    words: list[list[object]] = [["encode", model, source, folder / "o.npy"]]
    words.append(["similarity", model, "--files", source, source])
    _command(random.choice(words))


SURFACES: list[Callable[[Path, Random, Path], None]] = [translations, parquet, graph, recipe, names, sizes]
"""Each is given an empty folder, a generator, and the results of fuzz.toml."""

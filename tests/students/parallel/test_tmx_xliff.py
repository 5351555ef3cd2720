"""Translation memories: misplaced elements, hostile files, languages."""

import pytest
from translation_writers import NAMELESS, read, units

from bertrelay.errors import RequestError

CODE = '<bpt i="1">&lt;b></bpt><ph>%s</ph><ept i="1">&lt;/b></ept>'
SEGMENTS = "".join(
    f'<unit id="{state}"><segment state="{state}"><source>Yes</source><target>Ja</target></segment></unit>'
    for state in ("initial", "final")
)
BY_HAND = [
    (
        "a.tmx",
        units([("en", f"Delete {CODE}?"), ("de", f"Löschen: {CODE}?")]),
        "de",
        [("de", "Delete %s?", "Löschen: %s?", "placeholder")],
    ),
    (
        "a.tmx",
        units([("en", 'One<ph type="lb"/>two<ph>&lt;br/></ph>three'), ("de", "Eins<br/>zwei<it>\\n</it>drei")]),
        "de",
        [("de", "One two three", "Eins  zweidrei", "")],
    ),
    (
        "a.tmx",
        units([("en", "Cheers"), ("de-DE", "Danke"), ("de-AT", "Prost")], [("", "?"), ("en", "Two"), ("de", "Zwei")]),
        "de",
        [("de", "Cheers", "Danke", ""), ("de", "Cheers", "Prost", ""), ("de", "Two", "Zwei", "")],
    ),
    (
        "a.xlf",
        f'<xliff version="2.0" srcLang="en" trgLang="de"><file id="f">{SEGMENTS}</file></xliff>',
        "de",
        [("de", "Yes", "Ja", "not translated"), ("de", "Yes", "Ja", "")],
    ),
]


@pytest.mark.parametrize(("name", "content", "language", "pairs"), BY_HAND)
def test_pairs_of_a_translation_memory_are_those_that_people_read(tmp_path, name, content, language, pairs):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read(tmp_path / name, language) == (pairs, [])


def test_a_document_type_with_entities_is_refused(tmp_path):
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    for entity in (bomb, '<!ENTITY e9 SYSTEM "file:///etc/passwd">', '<!ENTITY % e9 SYSTEM "http://host/x.dtd"> %e9;'):
        path = tmp_path / "a.tmx"
        path.write_text(
            f'<?xml version="1.0"?>\n<!DOCTYPE tmx [<!ENTITY e0 "x">{entity}]>\n<tmx><body><tu>'
            '<tuv xml:lang="en"><seg>&e9;</seg></tuv></tu></body></tmx>'
        )
        with pytest.raises(RequestError, match=r"a\.tmx, line 2: expected no entities"):
            read(path, "de")


@pytest.mark.parametrize("name", ["messages.de.xlf", "de.xlf", "plugin-de_DE.xliff"])
def test_a_file_without_a_language_of_its_translations_has_the_one_in_its_name(tmp_path, name):
    (tmp_path / name).write_text(NAMELESS)
    assert read(tmp_path / name, "de") == ([("de", "Yes", "Ja", "")] * 2, [])


UNIT = "<tu><tuv xml:lang='en'><seg>{0}</seg></tuv><tuv xml:lang='de'><seg>{0}!</seg></tuv></tu>"


def test_misplaced_segments_are_counted_with_their_lines_and_change_no_other(tmp_path):
    """A unit in a unit, one in a sentence, and sentences outside of units."""
    nested = UNIT.format("a").replace("</tu>", f"\n{UNIT.format('b')}</tu>")
    inline = UNIT.format("c<x>\n" + UNIT.format("d") + "</x>e")
    outside = "<tuv xml:lang='de'>\n<seg>f</seg></tuv>"
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{nested}{inline}{outside}{UNIT.format('g')}</body></tmx>")
    pairs, faults = read(tmp_path / "a.tmx", "de")
    assert [pair[1:3] for pair in pairs] == [("a", "a!"), ("ce", "ce!"), ("g", "g!")]
    assert [(fault.line, fault.reason) for fault in faults] == [
        (2, "a tu in another one"), (3, "a tu in another one"), (4, "a tu in another one"), (5, "a seg outside of a tu")
    ]  # fmt: skip


def test_misplaced_units_of_xliff_are_counted(tmp_path):
    unit = "<trans-unit><source>{0}</source>{1}<target>{0}!</target></trans-unit>"
    content = unit.format("a", "\n" + unit.format("b", "")) + "<source>c</source>" + unit.format("d", "")
    head = '<xliff version="1.2"><file source-language="en" target-language="de"><body>'
    (tmp_path / "a.xlf").write_text(f"{head}{content}</body></file></xliff>")
    pairs, faults = read(tmp_path / "a.xlf", "de")
    assert [pair[1:3] for pair in pairs] == [("a", "a!"), ("d", "d!")]
    assert [fault.reason for fault in faults] == [
        "a trans-unit in another one",
        "a source outside of a trans-unit or segment",
    ]


def test_a_segment_of_thousands_of_variants_is_one_dropped_pair_and_not_their_product(tmp_path):
    def segment(variants):
        return (
            "<tu>"
            + "".join(
                f'<tuv xml:lang="{code}"><seg>{code} {number}</seg></tuv>'
                for code in ("en", "de")
                for number in range(variants)
            )
            + "</tu>"
        )

    (tmp_path / "a.tmx").write_text(f"<tmx><body>{segment(4_000)}{segment(2)}</body></tmx>")
    pairs, _ = read(tmp_path / "a.tmx", "de")
    assert [pair[3] for pair in pairs] == ["a segment with more than 1,000 pairs", "", "", "", ""]


@pytest.mark.parametrize("endless", ["<tu note='%s'/>", "<tu><tuv lang='en'><seg>%s</seg></tuv></tu>", "<!-- %s -->"])
def test_a_tag_or_sentence_without_an_end_is_refused(tmp_path, endless):
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{endless % ('x ' * (3 << 20))}</body></tmx>")
    with pytest.raises(RequestError, match=r"a\.tmx, line 1: expected segments and tags of at most 4 MiB"):
        read(tmp_path / "a.tmx", "de")
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{' ' * (6 << 20)}</body></tmx>")
    with pytest.raises(RequestError, match="has no translations"):
        read(tmp_path / "a.tmx", "de")


def test_elements_nested_without_end_are_refused(tmp_path):
    def nested(depth):
        sentence = "<hi>" * depth + "Ja" + "</hi>" * depth
        (tmp_path / "a.tmx").write_text(units([("en", "Yes"), ("de", sentence)]))
        return read(tmp_path / "a.tmx", "de")

    assert nested(195) == ([("de", "Yes", "Ja", "")], [])
    with pytest.raises(RequestError, match=r"a\.tmx, line 1: expected at most 200 elements in each other"):
        nested(196)

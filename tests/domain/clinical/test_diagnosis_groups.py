"""Codes of ICD-9 and ICD-10 by hand, and which groups are the commonest."""

import pytest

from domain.clinical.labelled_notes import commonest, group_of, groups_of_stay, indicators


@pytest.mark.parametrize(
    ("code", "version", "group"),
    [
        ("4280", 9, "ICD-9 428"),
        ("0389", 9, "ICD-9 038"),
        ("486", 9, "ICD-9 486"),
        ("25000", 9, "ICD-9 250"),
        ("250.00", 9, "ICD-9 250"),
        ("V5861", 9, "ICD-9 V58"),
        ("V10", 9, "ICD-9 V10"),
        ("E8788", 9, "ICD-9 E878"),
        ("E849", 9, "ICD-9 E849"),
        (" e8497 ", 9, "ICD-9 E849"),
        ("I509", 10, "ICD-10 I50"),
        ("I10", 10, "ICD-10 I10"),
        ("V586XXA", 10, "ICD-10 V58"),
        ("C7A010", 10, "ICD-10 C7A"),
        ("S72141A", 10, "ICD-10 S72"),
        ("E119", 10, "ICD-10 E11"),
        ("I509", 9, None),
        ("E11", 9, None),
        ("38", 9, None),
        ("4280", 10, None),
        ("428000", 9, None),
        ("S72141AXX", 10, None),
        ("QZXNAME", 10, None),
        ("", 9, None),
        ("4280", 11, None),
    ],
)
def test_a_code_is_of_the_category_that_its_version_gives_it(code, version, group):
    assert group_of(code, version) == group


def test_a_stay_has_each_group_once_and_what_is_no_code_has_none():
    codes = [("4280", 9), ("42821", 9), ("I509", 10), ("nonsense", 9)]
    assert groups_of_stay({"code": code, "version": version} for code, version in codes) == {"ICD-9 428", "ICD-10 I50"}


def test_the_commonest_groups_are_those_of_most_stays_ties_by_name():
    stays = [{"b", "a"}, {"b", "c"}, {"a", "d"}, {"b"}]
    assert commonest(stays, 2, fewest=1) == ("b", "a")
    assert commonest(stays, 9, fewest=1) == ("b", "a", "c", "d")
    assert commonest(stays, 9, fewest=2) == ("b", "a")
    assert commonest(stays, 9) == ()
    assert indicators(stays, ("b", "a")).tolist() == [[True, True], [True, False], [False, True], [True, False]]
    assert indicators([], ("b", "a")).shape == (0, 2)

"""Korean: the verb ends every clause, particles mark the roles, and the clause that gives the reason comes first."""

from typing import NamedTuple

from pipelines.samples.grammar import COUNTED, Clause, Meaning, Phrase, Place
from pipelines.samples.lexicon import KINDS, LIVING
from pipelines.samples.words import joined, said, sentence

FIRST_SYLLABLE, FINALS, FINAL_RIEUL = 0xAC00, 28, 8
"""Unicode lays syllables out by their final consonant: 28 of them, the first being none, the ninth ㄹ."""


class Noun(NamedTuple):
    word: str
    counter: str = "개"


class Verb(NamedTuple):
    """Stem, plain present, past without its -다, and the form before 것이다; `to_someone`: "에게" marks the object."""

    stem: str
    present: str
    past: str
    future: str
    to_someone: bool = False


NOUNS = {
    "person": Noun("사람", "명"),
    "man": Noun("남자", "명"),
    "woman": Noun("여자", "명"),
    "friend": Noun("친구", "명"),
    "teacher": Noun("교사", "명"),
    "doctor": Noun("의사", "명"),
    "farmer": Noun("농부", "명"),
    "student": Noun("학생", "명"),
    "neighbour": Noun("이웃", "명"),
    "nurse": Noun("간호사", "명"),
    "boy": Noun("소년", "명"),
    "girl": Noun("소녀", "명"),
    "child": Noun("아이", "명"),
    "animal": Noun("동물", "마리"),
    "dog": Noun("개", "마리"),
    "cat": Noun("고양이", "마리"),
    "horse": Noun("말", "마리"),
    "bird": Noun("새", "마리"),
    "cow": Noun("소", "마리"),
    "rabbit": Noun("토끼", "마리"),
    "book": Noun("책", "권"),
    "letter": Noun("편지", "통"),
    "newspaper": Noun("신문", "부"),
    "apple": Noun("사과"),
    "bread": Noun("빵"),
    "cake": Noun("케이크"),
    "coffee": Noun("커피"),
    "milk": Noun("우유"),
    "ball": Noun("공"),
    "key": Noun("열쇠"),
    "flower": Noun("꽃", "송이"),
    "picture": Noun("그림", "점"),
    "door": Noun("문"),
    "window": Noun("창문"),
    "car": Noun("자동차", "대"),
    "bicycle": Noun("자전거", "대"),
    "garden": Noun("정원"),
    "park": Noun("공원"),
    "kitchen": Noun("부엌"),
    "school": Noun("학교"),
    "station": Noun("역"),
    "market": Noun("시장"),
    "hospital": Noun("병원"),
    "forest": Noun("숲"),
    "beach": Noun("해변"),
}

VERBS = {
    "sleep": Verb("자", "잔다", "잤", "잘"),
    "work": Verb("일하", "일한다", "일했", "일할"),
    "laugh": Verb("웃", "웃는다", "웃었", "웃을"),
    "sing": Verb("노래하", "노래한다", "노래했", "노래할"),
    "play": Verb("놀", "논다", "놀았", "놀"),
    "go": Verb("가", "간다", "갔", "갈"),
    "run": Verb("달려가", "달려간다", "달려갔", "달려갈"),
    "come": Verb("오", "온다", "왔", "올"),
    "follow": Verb("따라가", "따라간다", "따라갔", "따라갈"),
    "see": Verb("보", "본다", "보았", "볼"),
    "love": Verb("사랑하", "사랑한다", "사랑했", "사랑할"),
    "look for": Verb("찾아다니", "찾아다닌다", "찾아다녔", "찾아다닐"),
    "find": Verb("발견하", "발견한다", "발견했", "발견할"),
    "wait for": Verb("기다리", "기다린다", "기다렸", "기다릴"),
    "help": Verb("돕", "돕는다", "도왔", "도울"),
    "call": Verb("전화하", "전화한다", "전화했", "전화할", to_someone=True),
    "read": Verb("읽", "읽는다", "읽었", "읽을"),
    "write": Verb("쓰", "쓴다", "썼", "쓸"),
    "eat": Verb("먹", "먹는다", "먹었", "먹을"),
    "drink": Verb("마시", "마신다", "마셨", "마실"),
    "buy": Verb("사", "산다", "샀", "살"),
    "open": Verb("열", "연다", "열었", "열"),
    "close": Verb("닫", "닫는다", "닫았", "닫을"),
    "repair": Verb("고치", "고친다", "고쳤", "고칠"),
    "give": Verb("주", "준다", "주었", "줄"),
    "show": Verb("보여 주", "보여 준다", "보여 주었", "보여 줄"),
    "send": Verb("보내", "보낸다", "보냈", "보낼"),
}
STATES = {
    "tired": Verb("피곤하", "피곤하다", "피곤했", "피곤할"),
    "sad": Verb("슬프", "슬프다", "슬펐", "슬플"),
    "happy": Verb("행복하", "행복하다", "행복했", "행복할"),
    "ill": Verb("아프", "아프다", "아팠", "아플"),
    "busy": Verb("바쁘", "바쁘다", "바빴", "바쁠"),
}
NOT = Verb("않", "않는다", "않았", "않을")
UNABLE = Verb("못하", "못한다", "못했", "못할")
"""Who does not find or see something could not, in Korean."""

ADJECTIVES = {
    "kind": "친절한",
    "sad": "슬픈",
    "tired": "지친",
    "big": "큰",
    "small": "작은",
    "white": "하얀",
    "black": "검은",
    "red": "빨간",
    "new": "새",
    "hot": "뜨거운",
}
ADJECTIVES_BY_KIND = {
    "old": {"adult": "나이 든", "animal": "늙은", "text": "오래된", "opening": "낡은", "vehicle": "낡은"},
    "young": {"adult": "젊은", "animal": "어린"},
    "good": {"adult": "좋은", "child": "착한", "food": "맛있는", "drink": "맛있는"},
}
NUMBERS = {"two": "두", "three": "세"}
TIMES = {
    "yesterday": "어제",
    "last night": "어젯밤에",
    "last week": "지난주에",
    "on Monday": "월요일에",
    "today": "오늘",
    "now": "지금",
    "tomorrow": "내일",
    "next week": "다음 주에",
    "soon": "곧",
    "every day": "매일",
    "often": "자주",
    "always": "항상",
    "on Sundays": "일요일에",
    "in summer": "여름에",
}


def render(meaning: Meaning) -> str:
    """`meaning` as a Korean sentence."""
    main = _clause(meaning.main, topic=True) + _finite(meaning.main)
    if meaning.second is None:
        return sentence(main)
    if meaning.link == "while":
        return sentence(f"{_clause(meaning.second, topic=False)}{_ongoing(meaning.second)} 동안 {main}")
    if meaning.link == "because":
        return sentence(f"{_clause(meaning.second, topic=False)}{_base(meaning.second)}기 때문에 {main}")
    joint = "고" if meaning.link == "and" else "지만"
    second = _clause(meaning.second, topic=True) + _finite(meaning.second)
    return sentence(f"{_clause(meaning.main, topic=True)}{_base(meaning.main)}{joint} {second}")


def _clause(clause: Clause, topic: bool) -> str:
    """All before the verb, with the space that parts them."""
    words = joined(
        _subject(clause, topic),
        TIMES[clause.time] if clause.time else None,
        said(lambda place: _place(place, clause.verb), clause.place),
        said(lambda phrase: f"{_phrase(phrase)}에게", clause.recipient),
        said(lambda phrase: _object(phrase, _verb(clause).to_someone), clause.object),
    )
    return f"{words} "


def _verb(clause: Clause) -> Verb:
    return STATES[clause.state] if clause.state else VERBS[clause.verb]


def _subject(clause: Clause, topic: bool) -> str:
    """What is known is the topic of its sentence; numbers bring in what is new, a subordinate clause has no topic."""
    phrase = _phrase(clause.subject, known=clause.tense == "habit")
    if topic and clause.subject.determiner not in COUNTED:
        return phrase + ("은" if ends_in_consonant(phrase) else "는")
    return phrase + ("이" if ends_in_consonant(phrase) else "가")


def _object(phrase: Phrase, to_someone: bool) -> str:
    words = _phrase(phrase)
    if to_someone:
        return f"{words}에게"
    return words + ("을" if ends_in_consonant(words) else "를")


def _phrase(phrase: Phrase, known: bool = False) -> str:
    """A noun phrase without its particle. `known`: "그" tells a bare noun from the whole species."""
    noun, living = NOUNS[phrase.noun], KINDS[phrase.noun] in LIVING
    adjective = phrase.adjective and _adjective(phrase.adjective, phrase.noun)
    if phrase.determiner in NUMBERS:
        return joined(adjective, noun.word, NUMBERS[phrase.determiner], noun.counter)
    generic = known or phrase.noun in ("person", "animal")
    bare = phrase.determiner == "the" and generic and not phrase.several
    opening = "그" if bare else {"this": "이", "my": "내", "many": "많은"}.get(phrase.determiner)
    return joined(opening, adjective, f"{noun.word}들" if phrase.plural and living else noun.word)


def _adjective(adjective: str, noun: str) -> str:
    return ADJECTIVES.get(adjective) or ADJECTIVES_BY_KIND[adjective][KINDS[noun]]


def _place(place: Place, verb: str) -> str:
    word = NOUNS[place.noun].word
    if place.relation == "near":
        return f"{word} 근처에서"
    if place.relation == "at" or place.relation == "from":
        return f"{word}에서"
    if verb != "run":
        return f"{word}에"
    final = _final(word)
    return f"{word}로" if final in (0, FINAL_RIEUL) else f"{word}으로"


def _predicate(clause: Clause) -> Verb:
    """The verb or state, denied where the clause is: 자지 않다, 발견하지 못하다."""
    verb = _verb(clause)
    if clause.tense == "present" and clause.state is None:
        verb = verb._replace(stem=f"{verb.stem}고 있")
    if not clause.negated:
        return verb
    denial = UNABLE if clause.verb in ("find", "see") else NOT
    stem, present, past, future = (f"{verb.stem}지 {form}" for form in denial[:4])
    return Verb(stem, present, past, future)


def _base(clause: Clause) -> str:
    """The predicate up to where -다, -고, -지만 or -기 때문에 joins on."""
    predicate = _predicate(clause)
    if clause.tense == "future":
        return f"{predicate.future} 것이"
    return predicate.past if clause.tense == "past" else predicate.stem


def _finite(clause: Clause) -> str:
    """The predicate as it ends a sentence."""
    if clause.tense == "habit" and clause.state is None:
        return _predicate(clause).present
    return f"{_base(clause)}다"


def _ongoing(clause: Clause) -> str:
    """The stem with -는, before which a final ㄹ falls away."""
    stem = _verb(clause).stem
    if _final(stem) == FINAL_RIEUL:
        stem = stem[:-1] + chr(ord(stem[-1]) - FINAL_RIEUL)
    return f"{stem}는"


def ends_in_consonant(word: str) -> bool:
    """Whether the last syllable has a final consonant, which decides between 은 and 는, 이 and 가, 을 and 를."""
    return _final(word) != 0


def _final(word: str) -> int:
    return (ord(word[-1]) - FIRST_SYLLABLE) % FINALS

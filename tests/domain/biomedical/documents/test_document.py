from domain.biomedical.documents.document import Document, sentences_of
from domain.text.words import word_spans


def test_sentences_have_all_words():
    text = "It was E. Coli was found. It grew. Then not."
    everything = [word for each in sentences_of(Document("", text)) for word in each]
    assert everything == word_spans(text)

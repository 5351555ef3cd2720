"""A student for queries and its teacher for documents, as one folder of sentence-transformers: its `Router`."""

from collections.abc import Sequence
from pathlib import Path

from bertrelay.evaluation.similarity import cosine_metrics, is_among_nearest
from bertrelay.files import new_folder
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, refuse_pair
from bertrelay.progress import log
from bertrelay.stage import Metrics


def write_pair(queries: SentenceEncoder, documents: SentenceEncoder, folder: Path, sentences: Sequence[str]) -> Metrics:
    """Writes the folder of a pair, and measures how near its encoders are to each other on `sentences`.

    folder: must not exist.
    Returns the cosines of each sentence as a query and as a document, and the fraction of sentences whose own document
    is the nearest to the query; warns where the encoder of queries records no training for the other one's vectors.
    Raises RequestError for encoders of other dimensions, and for a pair in place of an encoder.
    """
    for encoder in (queries, documents):
        refuse_pair(encoder)
    paired = SentenceEncoder.pair(queries=queries, documents=documents)
    with new_folder(folder) as building:
        paired.save(building)
    vectors = paired.encode_document(sentences), paired.encode_query(sentences)
    metrics: Metrics = cosine_metrics(*vectors) | {"accuracy": float(is_among_nearest(*vectors[::-1]).mean())}
    if encoder_digest(documents) not in queries.spaces:
        log(
            "warning: the model for queries does not record that it learned the vectors of the one for documents. Of "
            f"{len(sentences)} English sentences {metrics['accuracy']:.0%} find themselves among the documents' "
            "vectors; if that is little, they do not belong together"
        )
    return {f"query/{name}": value for name, value in metrics.items()}

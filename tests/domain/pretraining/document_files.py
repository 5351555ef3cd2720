"""Files of documents, and their items."""

import gzip
import io
import tarfile

from bertrelay.data.tables import Rejected
from domain.pretraining.documents import files_of, read_all
from domain.pretraining.pubmed import outdated
from domain.pretraining.settings import DocumentSource
from domain.reading import TextDocument


def read(*paths, **settings):
    sources = [DocumentSource(path=str(path), **settings) for path in paths]
    files = [(source, file) for source in sources for file in files_of(source)]
    return list(read_all(files, outdated(files)))


def texts(*paths, **settings):
    return [item.text for item in read(*paths, **settings) if isinstance(item, TextDocument)]


def faults(*paths):
    return [(item.line, item.reason) for item in read(*paths) if isinstance(item, Rejected) and item.is_fault]


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def packed(path, members):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return path


DOCTYPE = '<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMed//EN" "https://nowhere.invalid/pubmed.dtd">\n'


def citation(number, title, abstract="", others="", version=1):
    return (
        f'<PubmedArticle><MedlineCitation><PMID Version="{version}">{number}</PMID>'
        f"<Article><ArticleTitle>{title}</ArticleTitle>"
        f"<Abstract>{abstract}<CopyrightInformation>Copyright.</CopyrightInformation></Abstract></Article>{others}"
        f"</MedlineCitation><PubmedData><ArticleIdList><ArticleId>x</ArticleId></ArticleIdList></PubmedData>"
        f"</PubmedArticle>"
    )


def medline(*elements):
    return f'<?xml version="1.0"?>\n{DOCTYPE}<PubmedArticleSet>\n{"".join(elements)}\n</PubmedArticleSet>'


def article(body, number="77", space=""):
    return (
        f'<article{space}><front><article-meta><article-id pub-id-type="doi">10.1/x</article-id>'
        f'<article-id pub-id-type="pmcid">PMC{number}</article-id></article-meta></front>'
        f"<body>{body}</body><back><ref-list><ref>Reference.</ref></ref-list></back></article>"
    )

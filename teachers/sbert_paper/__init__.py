"""Everything that only repeats the SBERT paper: its test sets, ablation and baselines.

No module outside imports it, but some name it. A commit that removes the folder changes these too:

- `pipelines/registry.py` (its stages and `samples.sbert-paper`), `evaluate` in `pipelines/cli/encoders.py`, `samples`
  in `pipelines/cli/recipes.py`, the paper's files in `pipelines/samples/sentence_files.py` and `settings.py` there;
- `SCORERS` in `teachers/pairs/rerank.py`, and the packages and their files in `pyproject.toml`;
- `pipelines/recipes/sbert-*.toml`, its models in `tests/slow/test_fuzz.py` and `every_stage.toml` beside it;
- `tests/teachers/sbert_paper/`, `tests/pipelines/test_sbert_paper.py`, `NAMES_THE_PAPER` in `tests/test_layers.py`, and
  what imports it in other tests;
- its lines in `docs/evaluation.md`, `docs/architecture.md`, README and CHANGELOG.
"""

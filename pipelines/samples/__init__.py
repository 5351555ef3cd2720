"""Sample data of the project's own: sentences from meanings, in five languages, synthetic papers and hospitals."""

"""Sample data of the project's own: sentences from meanings, in five languages, made-up papers and hospitals."""

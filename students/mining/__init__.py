"""Mining: translations in two corpora, and hard negatives of pairs."""

"""Networks and tokenizers as files that may be damaged or strange."""

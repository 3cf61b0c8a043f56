"""From records to rows: the stages link, regions, crop, tokenize, build and check, and the row itself (`schema`)."""

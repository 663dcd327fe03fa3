//! Rows from sources in computed order, tokenizer, packing, prefetch, Cursor.

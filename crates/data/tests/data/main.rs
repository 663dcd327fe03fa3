//! Files and tokenizers as users have them.

mod text;
mod tokenizer;

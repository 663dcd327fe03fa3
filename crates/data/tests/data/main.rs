//! Files and tokenizers as users have them.

mod golden;
mod text;
mod tokenizer;

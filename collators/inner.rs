//! Collators around another: what they do not change is the other's.

use tt_data::{DataError, Row};

use crate::{Collator, Examples};

/// What a collator that holds another in `self.0` hands on to it: all but how rows are encoded, and whether all are.
macro_rules! hand_on {
    () => {
        fn layout(&self) -> crate::Layout {
            self.0.layout()
        }

        fn fields(&self) -> Vec<crate::Field> {
            self.0.fields()
        }

        fn prediction(&self) -> crate::Prediction {
            self.0.prediction()
        }

        fn columns(&self) -> Option<Vec<String>> {
            self.0.columns()
        }

        fn finish(&self, examples: &mut crate::Examples) -> Result<(), tt_data::DataError> {
            self.0.finish(examples)
        }

        fn hides_tokens(&self) -> bool {
            self.0.hides_tokens()
        }

        fn keeps(&self) -> Option<crate::Kept> {
            self.0.keeps()
        }

        fn chat_template(&self) -> Option<String> {
            self.0.chat_template()
        }

        fn answer_end(&self) -> Option<u32> {
            self.0.answer_end()
        }

        fn name(&self) -> &'static str {
            self.0.name()
        }
    };
}

pub(crate) use hand_on;

/// [`Collator::encode`] of a collator that encodes in parts: all of them, one after another.
pub(crate) fn encode_parts(
    collator: &dyn Collator,
    row: &Row,
    examples: &mut Examples,
) -> Result<(), DataError> {
    let mut from = Some(0);
    while let Some(here) = from {
        from = collator.encode_part(row, here, examples)?;
    }
    Ok(())
}

//! How examples become rows, and what their labels are compared with.

/// How examples are laid out in the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One after another; an example that does not fit goes on in the next row, as a segment of
    /// its own. A row of data may become any number of examples.
    Packed,
    /// One a row, cut off or padded on the right.
    Padded,
    /// Whole, as many in a row as fit: those of this many rows of data are packed together, the longest first, each into the
    /// first row that has room for it. A row of data may become any number of examples; one that is longer than a row is cut
    /// off.
    Fitted(usize),
    /// This many of one row of data, in adjacent rows of one micro-batch, each cut off or padded on the right: chosen and
    /// rejected of a preference pair. `trainer.micro_batch_size` counts rows of data then.
    Grouped(usize),
}

impl Layout {
    /// What collators of one example a row call `packing`.
    pub(crate) fn of(packing: bool) -> Self {
        if packing { Self::Packed } else { Self::Padded }
    }
}

/// What the model's output at a position is a prediction of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prediction {
    /// The token after it: the output at `t` is compared with the label at `t + 1`, as in Hugging Face's causal models.
    #[default]
    NextToken,
    /// The token in its place: the output at `t` is compared with the label at `t`, as in masked language modelling.
    SameToken,
}

impl Prediction {
    /// How far labels are from the outputs that they are compared with.
    pub fn shift(self) -> usize {
        match self {
            Self::NextToken => 1,
            Self::SameToken => 0,
        }
    }
}

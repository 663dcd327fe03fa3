//! The part of candle's backend traits that no language model needs.

/// The methods of `BackendStorage` for convolution, pooling and resampling, all of which end with this error.
#[macro_export]
macro_rules! unsupported_image_ops {
    ($error:literal) => {
        $crate::unsupported_image_ops! { $error =>
            conv1d(&::candle_core::Layout, &Self, &::candle_core::Layout, &::candle_core::conv::ParamsConv1D);
            conv_transpose1d(&::candle_core::Layout, &Self, &::candle_core::Layout, &::candle_core::conv::ParamsConvTranspose1D);
            conv2d(&::candle_core::Layout, &Self, &::candle_core::Layout, &::candle_core::conv::ParamsConv2D);
            conv_transpose2d(&::candle_core::Layout, &Self, &::candle_core::Layout, &::candle_core::conv::ParamsConvTranspose2D);
            avg_pool2d(&::candle_core::Layout, (usize, usize), (usize, usize));
            max_pool2d(&::candle_core::Layout, (usize, usize), (usize, usize));
            upsample_nearest1d(&::candle_core::Layout, usize);
            upsample_nearest2d(&::candle_core::Layout, usize, usize);
            upsample_bilinear2d(&::candle_core::Layout, usize, usize, bool, Option<f64>, Option<f64>);
        }
    };
    ($error:literal => $($name:ident($($operand:ty),*);)*) => {
        $(
            fn $name(&self, $(_: $operand),*) -> ::candle_core::Result<Self> {
                ::candle_core::bail!($error)
            }
        )*
    };
}

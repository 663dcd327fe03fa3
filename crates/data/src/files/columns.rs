//! Columns of Arrow, which Parquet is read as too, to the values of a row.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;

use crate::row::Row;
use crate::value::{Fields, ListBuilder, Value, integer};

/// Writes row `index` of `batch` over `row`.
pub(super) fn read_row(batch: &RecordBatch, index: usize, row: &mut Row) {
    let schema = batch.schema_ref();
    for (column, (field, array)) in schema.fields().iter().zip(batch.columns()).enumerate() {
        read(array, index, row.fields.at(column, field.name()));
    }
    row.fields.truncate(batch.num_columns());
}

/// Writes element `index` of `array` over `value`.
fn read(array: &ArrayRef, index: usize, value: &mut Value) {
    if array.is_null(index) {
        *value = Value::Null;
        return;
    }
    let text = match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(index),
        DataType::LargeUtf8 => array.as_string::<i64>().value(index),
        DataType::Utf8View => array.as_string_view().value(index),
        DataType::List(_) => return read_list(&array.as_list::<i32>().value(index), value),
        DataType::LargeList(_) => return read_list(&array.as_list::<i64>().value(index), value),
        DataType::FixedSizeList(..) => {
            return read_list(&array.as_fixed_size_list().value(index), value);
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let Value::Int(key) = other(&dictionary.keys().slice(index, 1), 0) else {
                unreachable!("keys are integers, and this one is not null")
            };
            return read(dictionary.values(), key as usize, value);
        }
        _ => {
            *value = other(array, index);
            return;
        }
    };
    value.text_mut().push_str(text);
}

/// What has no buffer to be used again.
fn other(array: &ArrayRef, index: usize) -> Value {
    macro_rules! integers {
        ($($name:ident $of:ident),*) => {
            match array.data_type() {
                $(DataType::$name => return Value::Int(array.as_primitive::<$of>().value(index).into()),)*
                _ => {}
            }
        };
    }
    integers!(
        Int8 Int8Type, Int16 Int16Type, Int32 Int32Type, Int64 Int64Type,
        UInt8 UInt8Type, UInt16 UInt16Type, UInt32 UInt32Type
    );
    match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(index)),
        DataType::UInt64 => integer(array.as_primitive::<UInt64Type>().value(index)),
        DataType::Float16 => Value::Float(array.as_primitive::<Float16Type>().value(index).into()),
        DataType::Float32 => Value::Float(array.as_primitive::<Float32Type>().value(index).into()),
        DataType::Float64 => Value::Float(array.as_primitive::<Float64Type>().value(index)),
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let values = fields.iter().zip(columns).map(|(field, column)| {
                let mut value = Value::Null;
                read(column, index, &mut value);
                (field.name().as_str(), value)
            });
            Value::Struct(values.collect::<Fields>())
        }
        DataType::Map(..) => {
            let entries: ArrayRef = std::sync::Arc::new(array.as_map().value(index));
            let mut list = Value::Null;
            read_list(&entries, &mut list);
            list
        }
        other => Value::Other(format!("of the type {other}")),
    }
}

fn read_list(items: &ArrayRef, value: &mut Value) {
    macro_rules! integers {
        ($($name:ident $of:ident),*) => {
            match items.data_type() {
                $(DataType::$name => {
                    let items = items.as_primitive::<$of>().values().iter();
                    value.ints_mut().extend(items.map(|&item| i64::from(item)));
                    return;
                })*
                _ => {}
            }
        };
    }
    if items.null_count() == 0 {
        integers!(
            Int8 Int8Type, Int16 Int16Type, Int32 Int32Type, Int64 Int64Type,
            UInt8 UInt8Type, UInt16 UInt16Type, UInt32 UInt32Type
        );
    }
    let mut list = ListBuilder::default();
    for index in 0..items.len() {
        let mut item = Value::Null;
        read(items, index, &mut item);
        list.push(item);
    }
    *value = list.finish();
}
